"""One fault, from report to resumed training: the manager's table.

Rules:

1. Agents report whole states (`hear`), time passes (`tick`); out come actions. Nothing here reads a clock.
2. `TABLE` names every pair of phase and event that may happen. Any other pair raises and changes nothing.
3. A rank's report counts only if it is of the wanted process (incarnation), and, but for its death, of the current
   generation. All else is news of a world that is gone.
4. Every attempt to build a world takes a new generation. A loss while one is being built joins the failing set, and
   the machine goes back to PAUSING.
5. Every phase has a deadline. A rank that misses PAUSING's is fenced; a world that misses another's is tried anew, and
   after `max_attempts` the strategy has failed for this fault.
6. Success is recorded only after every rank has committed one more step (or has none left).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from taskd.core.budget import Budget, Fault
from taskd.core.policy import Policy, Strategy
from taskd.core.ranks import plan_restore
from taskd.core.record import FaultRecord
from taskd.core.strategy import choose
from taskd.core.world import World
from taskd.errors import TransitionError
from taskd.wire.messages import Directive, NodeStatus, Order, RankStatus, Stage, WorldPlan


class Phase(Enum):
    """Where the job stands."""

    FORMING = "forming"  # not all nodes have reported yet
    RUNNING = "running"
    STRAYED = "strayed"  # a rank came out with an error; waiting for the news of a loss
    PAUSING = "pausing"  # survivors leave their collectives, new processes start
    JOINING = "joining"  # groups are formed, state is restored
    RESUMING = "resuming"  # the first step of the new world
    RESTARTING = "restarting"  # all processes start anew
    FINISHING = "finishing"  # every rank has finished; processes end
    STOPPED = "stopped"


class Event(Enum):
    """What may happen."""

    LOST = "lost"
    STARTED = "started"
    PAUSED = "paused"
    JOINED = "joined"
    RESTORED = "restored"
    COMMITTED = "committed"
    FINISHED = "finished"
    EXITED = "exited"
    NODE_LOST = "node lost"
    EXPIRED = "expired"


_EVENT_OF_STAGE = {
    Stage.STARTING: Event.STARTED,
    Stage.TRAINING: Event.STARTED,
    Stage.PAUSED: Event.PAUSED,
    Stage.JOINED: Event.JOINED,
    Stage.RESTORED: Event.RESTORED,
    Stage.COMMITTED: Event.COMMITTED,
    Stage.FINISHED: Event.FINISHED,
    Stage.RELEASED: Event.STARTED,
    Stage.EXITED: Event.EXITED,
    Stage.DEAD: Event.LOST,
}
_JOINED = (Stage.JOINED, Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED)
_RESTORED = (Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED)
_RESUMED = (Stage.COMMITTED, Stage.FINISHED)
_UP = tuple(stage for stage in Stage if stage is not Stage.DEAD)


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this directive to every agent, now and as the answer to each of their reports."""

    directive: Directive


@dataclass(frozen=True, slots=True)
class Recovered:
    """Record this recovery as a success."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job ends. `record` is that of the fault that ended it, if one did."""

    reason: str
    exit_code: int
    record: FaultRecord | None


@dataclass(frozen=True, slots=True)
class Note:
    """Tell the operator."""

    text: str


Action = Publish | Recovered | Stopped | Note


@dataclass(slots=True)
class Recovery:
    """The manager's machine for one job."""

    policy: Policy
    phase: Phase = Phase.FORMING
    world: World = field(default_factory=World)
    budget: Budget | None = None
    record: FaultRecord | None = None
    directive: Directive | None = None
    step: int = -1
    """Newest committed step that any rank has reported."""
    _tried: set[tuple[Strategy, bool]] = field(default_factory=set)
    _since_s: float = 0.0
    _confirm_until_s: float | None = None
    _now_s: float = 0.0
    _out: list[Action] = field(default_factory=list)

    # ---- what comes in

    def hear(self, status: NodeStatus, now_s: float) -> list[Action]:
        """Take in one agent's report. An old one changes nothing.

        Raises:
            TransitionError: the report says what cannot happen in this phase; that part of it has changed nothing.

        """
        self._now_s = now_s
        if not self.world.hear(status, now_s):
            return []
        if self.phase is Phase.FORMING:
            self._admit(status)
        else:
            for rank_status in status.ranks:
                self._hear_rank(rank_status)
        if status.leaving:
            self._leave(status)
        return self._flush()

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass: silent nodes are lost, phases that took too long expire."""
        self._now_s = now_s
        for node_rank in self.world.silent(now_s, self.policy.membership):
            self.world.dead_nodes.add(node_rank)
            self._fire(Event.NODE_LOST, node_rank)
        if self._expired():
            self._fire(Event.EXPIRED, -1)
        return self._flush()

    # ---- from reports to events

    def _admit(self, status: NodeStatus) -> None:
        self.world.admit(status, self._now_s)
        if self.budget is None:
            limit = self.policy.max_restarts
            self.budget = Budget(status.max_restarts if limit is None else limit, self.policy.repeats)
        self.step = max([self.step, *(rank.step for rank in status.ranks)])
        if len(self.world.ranks) == self.policy.world_size:
            self._enter(Phase.RUNNING)
            self._order(Order.RUN)
            self._review()

    def _review(self) -> None:
        """Back in RUNNING: act on what was heard while another phase could not."""
        for rank, view in sorted(self.world.ranks.items()):
            stage = view.at(self.world.generation)
            if stage is not None and self.phase in LIVE:
                self._fire(_EVENT_OF_STAGE[stage], rank)

    def _hear_rank(self, status: RankStatus) -> None:
        view = self.world.ranks.get(status.rank)
        if view is None or status.incarnation != view.incarnation or status == view.status:
            return
        if view.gone:  # a second report of the same end only knows its cause better
            self._learn_cause(status)
            return
        stage = view.stage_of(status, self.world.generation)
        if stage is not None:
            self._handler(_EVENT_OF_STAGE[stage], status.rank)
        view.status = status
        if stage is not None:
            self.step = max(self.step, status.step)
            self._fire(_EVENT_OF_STAGE[stage], status.rank)

    def _learn_cause(self, status: RankStatus) -> None:
        if self.record is not None and status.rank in self.record.causes and status.cause:
            self.record.causes[status.rank] = status.cause

    def _leave(self, status: NodeStatus) -> None:
        done = all(self.world.ranks[r].exited for r in self.world.on_node(status.node_rank))
        if self.phase is not Phase.STOPPED and not done:
            self._stop(f"the agent of node {status.node_rank} was told to stop", 1)

    def _handler(self, event: Event, subject: int) -> "Handler":
        handler = TABLE.get((self.phase, event))
        if handler is None:
            raise TransitionError(
                f"{event.name} of {subject} in phase {self.phase.name}, generation {self.world.generation}"
            )
        return handler

    def _fire(self, event: Event, subject: int) -> None:
        self._handler(event, subject)(self, subject)

    def _expired(self) -> bool:
        if self._confirm_until_s is not None:
            return self._now_s >= self._confirm_until_s
        if self.phase is Phase.PAUSING:
            return bool(self._late())
        limits = self.policy.deadlines
        limit = {
            Phase.JOINING: limits.join_s,
            Phase.RESUMING: limits.resume_s,
            Phase.RESTARTING: limits.replace_s,
        }.get(self.phase)
        return limit is not None and self._now_s - self._since_s >= limit

    def _late(self) -> list[int]:
        limits = self.policy.deadlines
        views = self.world.ranks
        return [
            rank
            for rank in self.world.not_paused()
            if self._now_s - views[rank].since_s >= (limits.replace_s if views[rank].joins else limits.pause_s)
        ]

    # ---- handlers, named in TABLE

    def ignore(self, _subject: int) -> None:
        """Known, and nothing follows."""

    def lose(self, rank: int) -> None:
        """A process ended while training: a fault begins."""
        self._begin({rank: self._cause(rank)})

    def lose_more(self, rank: int) -> None:
        """A process ended while a recovery runs: it joins the failing set."""
        record = self._need_record()
        record.causes[rank] = self._cause(rank)
        merged = self._now_s - record.detected_s <= self.policy.deadlines.merge_s
        if merged or self._charge([rank]):
            self._attempt(new_world=self.phase is not Phase.PAUSING)

    def stray(self, _rank: int) -> None:
        """A rank came out of its collectives on its own. Mostly a peer is dead, and that news is on its way."""
        until_s = self._confirm_until_s or self._now_s + self.policy.deadlines.confirm_s
        if self.phase is Phase.RUNNING:
            self._enter(Phase.STRAYED)
        self._confirm_until_s = until_s

    def unexplained(self, _subject: int) -> None:
        """No loss was reported: whoever has left is the culprit, or every process lives."""
        left = dict.fromkeys(self.world.exited(), "it exited with status 0 before the others")
        paused = set(self.world.ranks) - set(self.world.not_paused())
        self._begin(left or {rank: self._cause(rank) for rank in sorted(paused)})

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
        late = self._late()
        record = self._need_record()
        for rank in late:
            record.causes[rank] = "it did not pause in time and was fenced"
            self.world.replace(rank, self._now_s, joins=True)
        if self._charge(late):
            self._attempt(new_world=False)

    def advance(self, _rank: int) -> None:
        """A rank got further in building the world."""
        record = self._need_record()
        if record.joined_s is None and self.world.all_at(_JOINED):
            record.joined_s = self._now_s
        if self.phase is Phase.JOINING and self.world.all_at(_RESTORED):
            record.restored_s = self._now_s
            self._enter(Phase.RESUMING)
        if self.phase is Phase.RESUMING and self.world.all_at(_RESUMED):
            self._succeed()

    def fail_world(self, _subject: int) -> None:
        """The world could not be built, and nobody is known to be lost: try another."""
        self._attempt(new_world=True)

    def restarted(self, _rank: int) -> None:
        """One more process of a full restart runs."""
        if self.world.all_at(_UP):
            self._succeed()

    def stop_late(self, _subject: int) -> None:
        """Not even a full restart came up."""
        self._stop("the restarted processes did not come up in time", 1)

    def finish(self, rank: int) -> None:
        """When every rank's resilient function has returned, let them go."""
        if self.phase in (Phase.JOINING, Phase.RESUMING):
            self.advance(rank)
        elif self.world.all_at((Stage.FINISHED,)):
            self._enter(Phase.FINISHING)
            self._order(Order.RELEASE)

    def reopen(self, _rank: int) -> None:
        """The script has called another resilient function; when every rank is inside, the job trains again."""
        if self.world.all_at((Stage.TRAINING,)):
            self._enter(Phase.RUNNING)
            self._order(Order.RUN)

    def exit(self, _rank: int) -> None:
        """A process ended with status 0; the job is done when all have."""
        if len(self.world.exited()) == len(self.world.ranks):
            self._stop("every rank exited with status 0", 0)

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

    # ---- what is done

    def _begin(self, causes: dict[int, str]) -> None:
        self._tried.clear()
        self.record = FaultRecord(self._now_s, self.step, causes=causes)
        if self._charge(list(causes)):
            self._attempt(new_world=True)

    def _charge(self, ranks: list[int]) -> bool:
        causes, budget = self._need_record().causes, self.budget or Budget()
        charge = budget.charge([Fault(rank, self.step, causes.get(rank, "")) for rank in ranks])
        if not charge.granted:
            self._stop(charge.reason, 1)
        return charge.granted

    def _attempt(self, *, new_world: bool, no_donor: bool = False) -> None:
        record = self._need_record()
        record.attempts += new_world
        if record.attempts > self.policy.max_attempts:
            self._tried.add((record.strategy, record.restart))
            record.attempts = 1
        decision = choose(self.world.situation(no_donor=no_donor), self.policy.allowed, self._tried)
        record.strategy, record.restart, record.reason = decision.strategy, decision.restart, decision.reason
        if decision.strategy is Strategy.EXIT:
            self._stop(f"{_tell(record.causes)}; no strategy is left: {decision.reason}", 1)
            return
        self.world.generation += new_world or decision.restart
        record.begin_attempt(self.world.generation)
        for rank, view in self.world.ranks.items():
            if decision.restart or view.gone:
                self.world.replace(rank, self._now_s, joins=not decision.restart)
            elif new_world and not view.joins:
                view.since_s = self._now_s
        self._enter(Phase.RESTARTING if decision.restart else Phase.PAUSING)
        self._order(Order.RUN if decision.restart else Order.PAUSE)

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
            self.budget.progressed()
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)
        self._out.append(Recovered(record))
        self._review()

    def _stop(self, reason: str, exit_code: int) -> None:
        self._enter(Phase.STOPPED)
        self._order(Order.STOP, reason=reason, exit_code=exit_code)
        self._out.append(Stopped(reason, exit_code, self.record))
        self.record = None

    # ---- small things

    def _cause(self, rank: int) -> str:
        status = self.world.ranks[rank].status
        return status.cause if status is not None else ""

    def _need_record(self) -> FaultRecord:
        if self.record is None:
            raise TransitionError(f"phase {self.phase.name} without a fault")
        return self.record

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since_s = self._now_s
        self._confirm_until_s = None

    def _order(self, order: Order, plan: WorldPlan | None = None, reason: str = "", exit_code: int = 0) -> None:
        if self.record is not None and not reason:
            reason = _tell(self.record.causes)
        self.directive = Directive(
            job_id=self.policy.job_id,
            sequence=self.directive.sequence + 1 if self.directive is not None else 1,
            generation=self.world.generation,
            order=order,
            ranks=self.world.orders(),
            plan=plan,
            reason=reason,
            exit_code=exit_code,
        )
        self._out.append(Publish(self.directive))

    def _flush(self) -> list[Action]:
        out, self._out = self._out, []
        return out


def _tell(causes: dict[int, str]) -> str:
    return "; ".join(f"rank {rank}: {cause or 'unknown cause'}" for rank, cause in sorted(causes.items()))


Handler = Callable[[Recovery, int], None]


def _rows(phases: Iterable[Phase], event: Event, handler: Handler) -> dict[tuple[Phase, Event], Handler]:
    return {(phase, event): handler for phase in phases}


LIVE = (Phase.RUNNING, Phase.STRAYED)
BUILDING = (Phase.PAUSING, Phase.JOINING, Phase.RESUMING)

TABLE: dict[tuple[Phase, Event], Handler] = {
    **_rows((*LIVE, Phase.FINISHING), Event.LOST, Recovery.lose),
    **_rows((*BUILDING, Phase.RESTARTING), Event.LOST, Recovery.lose_more),
    **_rows((*LIVE, *BUILDING), Event.STARTED, Recovery.ignore),
    **_rows((Phase.FINISHING,), Event.STARTED, Recovery.reopen),
    **_rows((Phase.RESTARTING,), Event.STARTED, Recovery.restarted),
    **_rows((*LIVE, Phase.JOINING, Phase.RESUMING, Phase.FINISHING), Event.PAUSED, Recovery.stray),
    **_rows((Phase.PAUSING,), Event.PAUSED, Recovery.pausing),
    **_rows((Phase.RESTARTING,), Event.PAUSED, Recovery.restarted),
    **_rows((Phase.JOINING, Phase.RESUMING), Event.JOINED, Recovery.advance),
    **_rows((Phase.JOINING, Phase.RESUMING), Event.RESTORED, Recovery.advance),
    **_rows((Phase.JOINING, Phase.RESUMING), Event.COMMITTED, Recovery.advance),
    **_rows((*LIVE, Phase.FINISHING), Event.COMMITTED, Recovery.ignore),
    **_rows((Phase.FINISHING,), Event.FINISHED, Recovery.ignore),
    **_rows((Phase.RESTARTING,), Event.COMMITTED, Recovery.restarted),
    **_rows((*LIVE, Phase.JOINING, Phase.RESUMING), Event.FINISHED, Recovery.finish),
    **_rows((Phase.RESTARTING,), Event.FINISHED, Recovery.restarted),
    **_rows((*LIVE, Phase.FINISHING), Event.EXITED, Recovery.exit),
    **_rows(BUILDING, Event.EXITED, Recovery.lose_more),
    **_rows((Phase.RESTARTING,), Event.EXITED, Recovery.restarted),
    **_rows((*LIVE, *BUILDING, Phase.RESTARTING, Phase.FINISHING), Event.NODE_LOST, Recovery.lose_node),
    **_rows((Phase.FORMING,), Event.NODE_LOST, Recovery.ignore),
    **_rows((Phase.STRAYED, Phase.FINISHING), Event.EXPIRED, Recovery.unexplained),
    **_rows((Phase.PAUSING,), Event.EXPIRED, Recovery.fence_late),
    **_rows((Phase.JOINING, Phase.RESUMING), Event.EXPIRED, Recovery.fail_world),
    **_rows((Phase.RESTARTING,), Event.EXPIRED, Recovery.stop_late),
    **{(Phase.STOPPED, event): Recovery.ignore for event in Event},
}
"""Every pair of phase and event that may happen, and what it does."""
