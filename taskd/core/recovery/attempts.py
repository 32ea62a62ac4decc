"""Attempts to recover a job from one fault: their start, their cost, their plan and their end.

Rules:

1. Every attempt to build a world takes a new generation. A process that is lost meanwhile joins the failing set.
2. A strategy has failed for a fault after `max_attempts` failures: a world was not built in time, or one of its new
   processes was lost. The loss of a survivor is the machine's fault, not the strategy's.
3. A strategy fails at once, without a further charge, if a process ended by itself before the world had committed a
   step. This holds only if nothing outside has ended a process. The script cannot go on in that world. It may well go
   on from its beginning.
4. Every failed attempt leaves its reason.
5. No two managers build worlds of the same number. A number that was chosen before most nodes obeyed this manager may
   also be in use by another manager. It is changed before anything is planned.

All functions are effects: `(job, now_s, …)`. The functions that choose a strategy return the choice as an event.
"""

import math
from collections.abc import Collection, Mapping

from taskd.core.diagnosis.findings import Diagnosis
from taskd.core.membership.quorum import is_known
from taskd.core.policy import Strategy
from taskd.core.recovery.actions import JobEnded, Note, Recovered, Setback
from taskd.core.recovery.budget import Budget, Fault
from taskd.core.recovery.case import close_case, open_case
from taskd.core.recovery.causes import UNKNOWN, Cause
from taskd.core.recovery.comparing import StateComparison
from taskd.core.recovery.events import Chosen, Kept, Refused, Restarted, Undecided
from taskd.core.recovery.job import Incident, Job
from taskd.core.recovery.nodes import exclude, fill
from taskd.core.recovery.orders import send
from taskd.core.recovery.pace import forget_paces
from taskd.core.recovery.record import FaultRecord, tell
from taskd.core.recovery.situation import at_fault, blames_node, situation
from taskd.core.recovery.strategy import KEEPING, Decision, Situation, choose, may_stay, strategy_name
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Order


def refuse(_job: Job, _now_s: float, reason: str) -> Chosen:
    """Refuse to recover for this reason, which ends the job."""
    return Refused(reason)


def begin(
    job: Job,
    now_s: float,
    causes: Mapping[JobRank, Cause],
    *,
    free: bool = False,
    diagnosis: Diagnosis | None = None,
    verified: int = -1,
) -> Chosen:
    """Begin the recovery from a fault, and choose a strategy for it.

    `free`: the fault may be a false alarm, and spends no restart. `diagnosis`: that of the fault, if known already.
    `verified`: as in `Incident`.
    """
    record = FaultRecord(now_s, job.step, causes=dict(causes), fault=job.case.faults, diagnosis=diagnosis)
    over = bool(job.world.outside())
    job.incident = Incident(record, charged=dict.fromkeys(causes, now_s), over=over, verified=verified)
    return choose_again(job, now_s, charge=() if free else tuple(causes))


def blame(job: Job, _now_s: float, causes: Mapping[JobRank, Cause]) -> None:
    """Add these causes to the fault under way."""
    job.under_way.record.causes.update(causes)


def merges(job: Job, rank: JobRank, now_s: float) -> bool:
    """Return whether this loss belongs to the fault that the newest restart was spent for.

    It does not if its rank was already charged. A newcomer that dies like its predecessor must not count as the same
    fault.
    """
    charged = job.under_way.charged
    since_s = min(charged.values(), default=-math.inf)
    return rank not in charged and now_s - since_s <= job.policy.deadlines.merge_s


def merge(job: Job, _now_s: float, rank: JobRank) -> None:
    """Merge this loss into the fault already charged: it costs no restart of its own."""
    charged = job.under_way.charged
    charged[rank] = min(charged.values())


def choose_again(
    job: Job,
    now_s: float,
    *,
    charge: Collection[JobRank] = (),
    setback: str = "",
    new_world: bool = True,
    no_donor: bool = False,
) -> Chosen:
    """Choose the next strategy for the fault under way.

    `charge`: ranks for whose loss a restart is spent. `setback`: why the attempt so far has failed, if it has.
    """
    incident, world = job.under_way, job.world
    if charge:
        incident.charged = dict.fromkeys(charge, now_s)
    refusal = _charge(job, now_s, charge) if charge else ""
    if refusal:
        return Refused(refusal)
    if setback:
        fail(job, now_s, setback)
    record = incident.record
    if world.nodes.usable() and blames_node(world):
        incident.tried[Strategy.RECOVER_IN_PLACE, False] = "the process says that its node is at fault"
    undecided = bool(world.vacant) and not job.has_quorum(now_s)
    found = situation(world, no_donor=no_donor, renewal_tried=incident.renewed)
    if undecided:
        decision = Decision(Strategy.RECOVER, False, "too few nodes are heard to go on without the others")
    else:
        decision = choose(found, job.policy.strategies, incident.tried)
    record.decision = decision
    if decision.strategy is Strategy.EXIT:
        return Refused(f"{tell(record.causes)}; no strategy is left: {decision.reason}")
    incident.renewed |= decision.renews
    fewer = decision.strategy in (Strategy.ELASTIC_TRAINING, Strategy.DUMP)
    new_world = new_world or decision.renews or fewer
    if new_world or decision.restart:
        record.attempts += 1
        _number(job, now_s)
    else:
        record.begin_attempt(world.generation)
    _reshape(job, now_s, decision.strategy, found)
    if undecided:
        return Undecided()
    replace_lost(job, now_s, everybody=decision.restart, new_world=new_world, renews=decision.renews)
    return Restarted() if decision.restart else Kept()


def _charge(job: Job, now_s: float, ranks: Collection[JobRank]) -> str:
    """Spend a restart; return why that is refused, "" if it is granted."""
    incident, budget = job.under_way, job.budget or Budget()
    causes = incident.record.causes
    faults = [_fault(job, rank, causes.get(rank, UNKNOWN), now_s) for rank in ranks]
    charge = budget.charge(faults, now_s=now_s)
    if not charge.granted:
        return charge.reason
    if charge.anew:
        incident.tried |= dict.fromkeys(KEEPING, charge.anew)
    job.out.append(Note(charge.reason))
    return ""


def _fault(job: Job, rank: JobRank, cause: Cause, now_s: float) -> Fault:
    if not job.failed_to_start(rank, now_s):
        return Fault(rank, max(job.step, job.case.watch.newest_step()), cause, raised=cause.own)
    status = job.world.ranks[rank].known
    return Fault(JobRank(-1), -1, cause, early=True, raised=cause.raised and status is not None and not status.kind)


def fail(job: Job, _now_s: float, why: str, *, at_once: bool = False) -> None:
    """Record that the attempt under way has failed. `at_once`: its strategy is not tried again."""
    incident, record = job.under_way, job.under_way.record
    name = strategy_name(record.decision.strategy, record.decision.restart)
    record.setbacks.append(f"attempt {record.attempts} ({name}) failed: {why}")
    job.out.append(Setback(record, record.setbacks[-1], why))
    for view in job.world.ranks.values():
        view.moved = False
    incident.failures += 1
    if at_once or incident.failures >= _most_failures(job, record):
        incident.tried[record.decision.strategy, record.decision.restart] = "it has failed for this fault"
        incident.failures = 0


def _most_failures(job: Job, record: FaultRecord) -> int:
    """Return the number of failures after which a strategy is given up.

    It is 1 for a new process on its own node, if another node waits and the job may move there.
    """
    in_place = (record.decision.strategy, record.decision.restart) == (Strategy.RECOVER_IN_PLACE, False)
    moves = Strategy.RECOVER in job.policy.strategies.allowed
    elsewhere = moves and bool(job.world.nodes.usable())
    return 1 if in_place and elsewhere else job.policy.budget.max_attempts


def give_up_waiting(job: Job, _now_s: float) -> None:
    """Give up the strategy that waits for a node: none came for a vacant place."""
    incident = job.under_way
    text, strategy = f"no node came within {job.wait_s():g} s", incident.record.decision.strategy
    incident.tried |= {(strategy, False): text, (strategy, True): text}
    job.out.append(Note(text))


def _reshape(job: Job, now_s: float, strategy: Strategy, found: Situation) -> None:
    """Choose the nodes and ranks of the next world."""
    world, incident = job.world, job.under_way
    restart = incident.record.decision.restart
    stay = found.unreachable and may_stay(job.policy.strategies, incident.tried, restart=restart)
    failing = at_fault(world, () if stay else found.lost, found.unreachable)
    match strategy:
        case Strategy.RECOVER:
            for place in failing - world.nodes.dead_nodes:
                exclude(world, place)
            if incident.record.decision.restart:
                for place in world.vacant:  # the former holder must not start processes of the next world
                    world.nodes.vacate(place)
                    world.nodes.vacated.add(place)
            fill(job, now_s)
        case Strategy.ELASTIC_TRAINING:
            for place in failing:
                if place not in world.nodes.dead_nodes:
                    world.nodes.excluded.add(world.nodes.holders[place])
                world.remove(world.on_node(place))
                world.nodes.vacate(place)
        case Strategy.DUMP:  # a newcomer that already has its state may be the only rank that holds it
            world.remove({*(rank for rank in found.lost if world.ranks[rank].empty), *found.unreachable})
        case _:
            pass


def replace_lost(job: Job, now_s: float, *, everybody: bool, new_world: bool, renews: bool = False) -> None:
    """Request new processes for the ranks that have none, or for all ranks.

    In a new world, the deadlines of the other ranks start again. `everybody`: all ranks start without a state.
    `renews`: all ranks start and receive a state.
    """
    dead = job.world.nodes.dead_nodes
    for rank, view in job.world.ranks.items():
        if everybody or ((view.gone or renews) and view.node_rank not in dead):
            job.world.replace(rank, now_s, joins=not everybody)
        elif new_world and not view.starting and view.node_rank not in dead:
            view.since_s = now_s
    if everybody:
        job.step = -1


def fence(job: Job, now_s: float, causes: Mapping[JobRank, Cause]) -> None:
    """Replace these living processes, for these reasons."""
    job.under_way.record.causes.update(causes)
    for rank in causes:
        job.world.replace(rank, now_s, joins=True)


def rearrange(
    job: Job, now_s: float, strategy: Strategy, reason: str, causes: Mapping[JobRank, Cause], *, restart: bool = False
) -> Restarted | None:
    """Form another world although nothing has failed: nothing is charged, and no committed step is lost.

    With `restart` all processes restart, and no other strategy is considered.
    """
    record = FaultRecord(now_s, job.step, causes=dict(causes))
    record.decision, record.attempts = Decision(strategy, restart, reason), 1
    job.incident = Incident(record)
    _number(job, now_s)
    replace_lost(job, now_s, everybody=restart, new_world=True)
    return Restarted() if restart else None


def _number(job: Job, now_s: float) -> None:
    """Give the next world its number."""
    nodes, membership = job.world.nodes, job.policy.membership
    job.under_way.unique = is_known(nodes, job.orders.term, 0, now_s, membership)
    job.world.generation += 1
    job.under_way.record.begin_attempt(job.world.generation)


def start_cold(job: Job, now_s: float) -> Chosen:
    """Continue the same attempt with new processes in place of the warm ones that failed.

    Nothing is charged.
    """
    replace_lost(job, now_s, everybody=False, new_world=False)
    return Kept()


def renumber(job: Job, now_s: float) -> Kept:
    """Give the same world a number that no other manager can have given.

    By now most nodes obey this manager.
    """
    _number(job, now_s)
    replace_lost(job, now_s, everybody=False, new_world=True)
    return Kept()


def agree(job: Job, _now_s: float) -> None:
    """Record that the present world was formed, with the holders of its places."""
    job.world.nodes.agreed = {place: job.world.nodes.holders[place] for place in job.world.places}


def progress(job: Job, _now_s: float) -> None:
    """Report to the budget that every rank has committed a step."""
    if job.budget is not None:
        job.budget.progressed(job.world.common_step())


def release(job: Job, _now_s: float) -> None:
    """Release all ranks, which have finished. They may then train another state from another step."""
    job.world.release()
    job.comparison = StateComparison()


def succeed(job: Job, now_s: float) -> None:
    """End the fault: every rank has committed one more step, or all processes run."""
    record = job.under_way.record
    record.close(now_s, job.world.ranks)
    job.incident = None
    agree(job, now_s)
    for view in job.world.ranks.values():
        view.joins = False
    if job.budget is not None and record.decision.restart:
        job.budget.restarted()
    elif job.budget is not None:
        if not record.processes.kept:
            job.budget.renewed()
        job.budget.progressed(job.world.common_step())
    send(job, now_s, Order.RUN)
    job.out.append(Recovered(record))
    close_case(job)
    forget_paces(job.pace)
    job.pace.not_finite.clear()
    job.case.watch.begin(now_s)


def stop(job: Job, now_s: float, reason: str, exit_code: int = 1) -> None:
    """End the job."""
    if exit_code and not job.case.open and job.ended():  # otherwise a launcher ends its ranks: no diagnosis needed
        open_case(job, now_s)
    send(job, now_s, Order.STOP, reason=reason, exit_code=exit_code)
    job.out.append(JobEnded(reason, exit_code, job.record))
    job.incident = None
