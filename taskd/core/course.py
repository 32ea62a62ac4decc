"""The course of one fault: what each event does to a job, and what is ordered next.

Rules:

1. A handler is called by `recovery.py`, for an event that its table allows, and finds the reports already noted.
2. Every attempt to build a world takes a new generation. A loss while one is being built joins the failing set, and
   the job goes back to PAUSING.
3. A strategy has failed for a fault when it has failed `max_attempts` times: a world was not built in time, or one of
   its new processes was lost. The loss of a survivor is the machine's fault and not the strategy's.
4. From RELEASE on, nobody knows who is still inside the resilient function. A loss then waits until all others are
   inside again or have ended, `replace_s` at most.
5. Success is recorded only after every rank has committed one more step (or has none left).
"""

from dataclasses import dataclass, field

from taskd.core.budget import Budget, Fault
from taskd.core.phases import DONE, JOINED, RESTORED, RESUMED, UP, Action, Note, Phase, Publish, Recovered, Stopped
from taskd.core.policy import Policy, Strategy
from taskd.core.ranks import plan_restore
from taskd.core.record import FaultRecord
from taskd.core.strategy import choose
from taskd.core.world import World
from taskd.errors import TransitionError
from taskd.wire.messages import Directive, Order, Stage, WorldPlan


@dataclass(slots=True)
class Course:
    """The state of one job, with a handler for each kind of event."""

    policy: Policy
    phase: Phase = Phase.FORMING
    world: World = field(default_factory=World)
    budget: Budget | None = None
    record: FaultRecord | None = None
    directive: Directive | None = None
    sequence: int = 0
    """Number of the newest directive. The first of a new manager must exceed those of the job's former ones."""
    step: int = -1
    """Newest committed step that any rank has reported since the job, or all of its processes, last started."""
    _tried: set[tuple[Strategy, bool]] = field(default_factory=set)
    _failures: int = 0
    _since_s: float = 0.0
    _confirm_until_s: float | None = None
    _now_s: float = 0.0
    _review_due: bool = False
    _out: list[Action] = field(default_factory=list)

    # ---- handlers, named in TABLE; the subject is a rank, or for NODE_* a node

    def ignore(self, _subject: int) -> None:
        """Known, and nothing follows."""

    def lose(self, rank: int) -> None:
        """A process ended while training: a fault begins."""
        self._begin({rank: self._cause(rank)})

    def lose_more(self, rank: int) -> None:
        """A process ended while a recovery runs: it joins the failing set."""
        record = self._need_record()
        again = rank in record.causes  # a newcomer that dies as its predecessor did must not pass for one fault with it
        merged = not again and self._now_s - record.detected_s <= self.policy.deadlines.merge_s
        record.causes[rank] = self._cause(rank)
        failed = self.phase is Phase.RESTARTING or self.world.ranks[rank].joins
        if merged or self._charge([rank]):
            self._attempt(new_world=self.phase is not Phase.PAUSING, failed=failed)

    def lose_outside(self, _rank: int) -> None:
        """A process ended after all had finished: recover when the others can take part again."""
        self._confirm_until_s = self._confirm_until_s or self._now_s + self.policy.deadlines.replace_s
        self._begin_if_settled()

    def stray(self, _rank: int) -> None:
        """A rank came out of its collectives on its own. Mostly a peer is dead, and that news is on its way."""
        until_s = self._confirm_until_s or self._now_s + self.policy.deadlines.confirm_s
        if self.phase is Phase.RUNNING:
            self._enter(Phase.STRAYED)
        self._confirm_until_s = until_s

    def unexplained(self, _subject: int) -> None:
        """No loss was reported: whoever has left is the culprit, or every process lives."""
        if self.world.starting() and self._now_s - self._since_s < self.policy.deadlines.replace_s:
            self._confirm_until_s = self._now_s + self.policy.deadlines.confirm_s
            return
        self._begin(self._ended() or {rank: self._cause(rank) for rank in self.world.at_stage(Stage.PAUSED)})

    def pausing(self, _rank: int) -> None:
        """One more rank waits for a plan; when all do, make it."""
        record = self._need_record()
        waiting = self.world.not_paused()
        if record.paused_s is None and all(self.world.ranks[rank].joins for rank in waiting):
            record.paused_s = self._now_s
        if record.replaced_s is None and not any(self.world.ranks[rank].joins for rank in waiting):
            record.replaced_s = self._now_s
        if not waiting:
            self._plan_world()

    def fence_late(self, _subject: int) -> None:
        """Ranks that did not come out, or did not come up, in time are replaced."""
        late = self.late()
        record = self._need_record()
        failed = any(self.world.ranks[rank].joins for rank in late)
        for rank in late:
            record.causes[rank] = "it did not pause in time and was fenced"
            self.world.replace(rank, self._now_s, joins=True)
        if self._charge(late):
            self._attempt(new_world=False, failed=failed)

    def advance(self, _rank: int) -> None:
        """A rank got further in building the world."""
        record = self._need_record()
        if record.joined_s is None and self.world.all_at(JOINED):
            record.joined_s = self._now_s
        if self.phase is Phase.JOINING and self.world.all_at(RESTORED):
            record.restored_s = self._now_s
            self._enter(Phase.RESUMING)
        if self.phase is Phase.RESUMING and self.world.all_at(RESUMED):
            self._succeed()

    def fail_world(self, _subject: int) -> None:
        """The world could not be built, and nobody is known to be lost: try another."""
        self._attempt(new_world=True, failed=True)

    def restarted(self, _rank: int) -> None:
        """One more process of a full restart runs."""
        if self.world.all_at(UP):
            self._succeed()

    def stop_late(self, _subject: int) -> None:
        """Not even a full restart came up."""
        self._stop("the restarted processes did not come up in time", 1)

    def progress(self, _rank: int) -> None:
        """A step was committed outside any recovery; by every rank, it is progress."""
        if self.budget is not None and self.world.all_at(RESUMED):
            self.budget.progressed(self.world.common_step())

    def finish(self, _rank: int) -> None:
        """When every rank's resilient function has returned (or is known to have been let go), let them go."""
        if self.world.all_at(DONE):
            self._enter(Phase.FINISHING)
            self.world.release()
            self._order(Order.RELEASE)

    def reopen(self, rank: int) -> None:
        """The script has called another resilient function; when every rank is inside, the job trains again."""
        self.world.ranks[rank].reenter()
        if not self.world.outside():
            self._enter(Phase.RUNNING)
            self._order(Order.RUN)
        elif self._confirm_until_s is not None:
            self._begin_if_settled()

    def stray_outside(self, rank: int) -> None:
        """A rank came out of its next resilient function before all others had entered theirs."""
        self._confirm_until_s = self._confirm_until_s or self._now_s + self.policy.deadlines.replace_s
        self.reopen(rank)

    def unsettled(self, _subject: int) -> None:
        """After RELEASE somebody is lost, and somebody else has not come back in time."""
        self._begin(self._ended() or {rank: self._cause(rank) for rank in self.world.at_stage(Stage.PAUSED)})

    def exit(self, rank: int) -> None:
        """A process ended with status 0; the job is done when all have."""
        if len(self.world.exited()) == len(self.world.ranks):
            self._stop("every rank exited with status 0", 0)
        elif self.phase is not Phase.FINISHING:
            self.finish(rank)
        elif self._confirm_until_s is not None:
            self._begin_if_settled()

    def lose_node(self, node_rank: int) -> None:
        """An agent is silent: every rank of its node is lost with it."""
        ranks = self.world.on_node(node_rank)
        if all(self.world.ranks[rank].exited for rank in ranks):
            return
        causes = dict.fromkeys(ranks, f"the agent of node {node_rank} is silent")
        if self.record is None:
            self._begin(causes)
        else:
            self.record.causes.update(causes)
            self._attempt(new_world=True)

    def leave_node(self, node_rank: int) -> None:
        """torchrun has ended on a node; unless its work is done, so is the job."""
        ranks = self.world.on_node(node_rank)
        if not ranks or not all(self.world.ranks[rank].exited for rank in ranks):
            self._stop(f"torchrun has ended on node {node_rank}", 1)

    def follow(self, _node_rank: int) -> None:
        """The agents know a newer world than this manager: what they carry is the truth."""
        self.record = None
        for node in self.world.nodes.values():
            self.world.admit(node.status, self._now_s)
        self._out.append(Note(f"the agents carry generation {self.world.generation}: the manager follows"))
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)

    def stop_again(self, node_rank: int) -> None:
        """The end of the job must be newer than all that an agent knows."""
        last = self.directive
        self.world.generation = self.world.nodes[node_rank].status.generation
        if last is not None:
            self._order(Order.STOP, reason=last.reason, exit_code=last.exit_code)

    # ---- what is done

    def _begin_if_settled(self) -> None:
        """After RELEASE: recover as soon as nobody can still be between two resilient functions."""
        if all(self.world.ranks[rank].gone for rank in self.world.outside()):
            self._begin(self._ended())

    def _begin(self, causes: dict[int, str]) -> None:
        self._tried.clear()
        self._failures = 0
        self.record = FaultRecord(self._now_s, self.step, causes=causes)
        if self._charge(list(causes)):
            self._attempt(new_world=True)

    def _charge(self, ranks: list[int]) -> bool:
        causes, budget = self._need_record().causes, self.budget or Budget()
        charge = budget.charge([Fault(rank, self.step, causes.get(rank, "")) for rank in ranks])
        if charge.granted:
            self._out.append(Note(charge.reason))
        else:
            self._stop(charge.reason, 1)
        return charge.granted

    def _attempt(self, *, new_world: bool, failed: bool = False, no_donor: bool = False) -> None:
        record = self._need_record()
        self._failures += failed
        if self._failures >= self.policy.max_attempts:
            self._tried.add((record.strategy, record.restart))
            self._failures = 0
        decision = choose(self.world.situation(no_donor=no_donor), self.policy.allowed, self._tried)
        record.strategy, record.restart, record.reason = decision.strategy, decision.restart, decision.reason
        if decision.strategy is Strategy.EXIT:
            self._stop(f"{tell(record.causes)}; no strategy is left: {decision.reason}", 1)
            return
        record.attempts += new_world or decision.restart
        self.world.generation += new_world or decision.restart
        record.begin_attempt(self.world.generation)
        self._replace(everybody=decision.restart, new_world=new_world)
        self._enter(Phase.RESTARTING if decision.restart else Phase.PAUSING)
        self._order(Order.RUN if decision.restart else Order.PAUSE)

    def _replace(self, *, everybody: bool, new_world: bool) -> None:
        for rank, view in self.world.ranks.items():
            if everybody or view.gone:
                self.world.replace(rank, self._now_s, joins=not everybody)
            elif new_world and not view.starting:
                view.since_s = self._now_s
        if everybody:
            self.step = -1

    def _plan_world(self) -> None:
        record = self._need_record()
        restore = plan_restore(self.world.held())
        if restore is None:
            self._attempt(new_world=True, no_donor=True)
            return
        host = self.world.store_host()
        record.planned_s, record.target_step = self._now_s, restore.target_step
        plan = WorldPlan(
            generation=self.world.generation,
            world_size=len(self.world.ranks),
            store_host=host.store_host,
            store_port=host.store_port,
            target_step=restore.target_step,
            adopt=restore.adopt,
            transfers=restore.transfers,
            timeout_s=self.policy.deadlines.join_s,
        )
        self._enter(Phase.JOINING)
        self._order(Order.JOIN, plan)

    def _succeed(self) -> None:
        record = self._need_record()
        record.close(self._now_s, self.world.ranks)
        self.record = None
        for view in self.world.ranks.values():
            view.joins = False
        if self.budget is not None and not record.restart:
            self.budget.progressed(self.world.common_step())
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)
        self._out.append(Recovered(record))

    def _stop(self, reason: str, exit_code: int) -> None:
        self._enter(Phase.STOPPED)
        self._order(Order.STOP, reason=reason, exit_code=exit_code)
        self._out.append(Stopped(reason, exit_code, self.record))
        self.record = None

    # ---- small things

    def late(self) -> list[int]:
        """Ranks that have kept a pause waiting for too long."""
        limits = self.policy.deadlines
        views = self.world.ranks
        return [
            rank
            for rank in self.world.not_paused()
            if self._now_s - views[rank].since_s >= (limits.replace_s if views[rank].joins else limits.pause_s)
        ]

    def _cause(self, rank: int) -> str:
        view = self.world.ranks[rank]
        if view.exited:
            return "it exited with status 0 before the others"
        return view.status.cause if view.status is not None else ""

    def _ended(self) -> dict[int, str]:
        """Ranks without a process. Those that exited with status 0 count only if no other has ended."""
        gone = [rank for rank, view in self.world.ranks.items() if view.gone]
        dead = [rank for rank in gone if not self.world.ranks[rank].exited]
        return {rank: self._cause(rank) for rank in dead or gone}

    def _need_record(self) -> FaultRecord:
        if self.record is None:
            raise TransitionError(f"phase {self.phase.name} without a fault")
        return self.record

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since_s = self._now_s
        self._confirm_until_s = None
        self._review_due = phase is Phase.RUNNING

    def _order(self, order: Order, plan: WorldPlan | None = None, reason: str = "", exit_code: int = 0) -> None:
        if self.record is not None and not reason:
            reason = tell(self.record.causes)
        self.sequence += 1
        self.directive = Directive(
            job_id=self.policy.job_id,
            sequence=self.sequence,
            generation=self.world.generation,
            order=order,
            ranks=self.world.orders(),
            plan=plan,
            reason=reason,
            exit_code=exit_code,
        )
        self._out.append(Publish(self.directive))


def tell(causes: dict[int, str]) -> str:
    """The causes of a fault in words."""
    return "; ".join(f"rank {rank}: {cause or 'unknown cause'}" for rank, cause in sorted(causes.items()))
