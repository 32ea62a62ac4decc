"""The manager's machine for one job: reports and time come in, actions go out.

Rules:

1. Agents report whole states (`hear`), time passes (`tick`); out come actions. Nothing here reads a clock.
2. `TABLE` names every pair of phase and event that may happen. Any other pair raises and changes nothing.
3. A rank's report counts only if it is of the wanted process (incarnation), and, but for its death, of the current
   generation. All else is news of a world that is gone.
4. Every phase has a deadline. A rank that misses PAUSING's is fenced; a world that misses another's is tried anew.
5. Whatever was heard while a phase could do nothing with it is looked at again when the job runs.
6. Who holds no place speaks for no rank, and is not believed that this manager's time is over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from taskd.core.budget import Budget
from taskd.core.course import Course
from taskd.core.evidence import Evidence
from taskd.core.inquest import ASK_STRAYED_S
from taskd.core.phases import (
    BUILDING,
    EVENT_OF_STAGE,
    LIVE,
    Action,
    AskCluster,
    AskKernel,
    Diagnosed,
    Event,
    Note,
    Phase,
    Publish,
    Recovered,
    Setback,
    Stopped,
    Superseded,
)
from taskd.core.places import Reporter, age
from taskd.core.shorthand import is_short
from taskd.core.table import Row, rows
from taskd.core.watch import Watch
from taskd.core.world import newest_generation, stage_in
from taskd.errors import TransitionError
from taskd.wire.messages import NodeStatus, Order, RankStatus, Stage

__all__ = [
    "Action", "AskCluster", "AskKernel", "Diagnosed", "Event", "Note", "Phase", "Publish", "Recovered", "Recovery",
    "Setback", "Stopped", "Superseded", "TABLE",
]  # fmt: skip


@dataclass(slots=True)
class Recovery(Course):
    """The manager's machine. `sequence` of a manager that takes over must exceed those of its predecessors."""

    superseded: bool = False
    """The agents obey a newer manager."""

    def __post_init__(self) -> None:
        """The first sequence number tells managers apart."""
        self.term = self.sequence + 1
        self.watch = Watch(self.policy.tempo)

    def hear(self, status: NodeStatus, now_s: float) -> list[Action]:
        """Take in one agent's report. An old one changes nothing.

        Raises:
            TransitionError: the report says of a rank what cannot happen in this phase. That rank's part has changed
                nothing; what the others' parts have led to comes out of the next call.

        """
        self._now_s = now_s
        if self._obeys_another(status):
            return self._flush()
        forming = self.phase is Phase.FORMING
        if is_short(status, self.term):
            if forming and self.directive is None:
                self._order(Order.FORM)
            return self._flush()
        was_dead = set(self.world.dead_nodes)
        standing = self.world.hear(status, now_s, claims=range(self.policy.node_count if forming else 0))
        if forming and self.directive is None:
            self._order(Order.FORM)
        place = self.world.place_of(status.agent_id)
        if place in was_dead - self.world.dead_nodes:
            self.world.give_time(place, now_s)
        if standing is Reporter.CANDIDATE and not forming:
            self._fire(Event.CANDIDATE, -1)
        elif standing is Reporter.HOLDER and place is not None and status.node_rank in (place, -1):
            self._hear_holder(status, place)
            self.note_progress(status, place)
        if self.phase is Phase.FORMING and self._may_be_whole(status):
            self._form()
        if self._unknown and self._echoed(status):
            self.plan_world()
        return self._flush()

    def hear_evidence(self, agent_id: str, probe: int, evidence: Mapping[int, Evidence], now_s: float) -> list[Action]:
        """An agent says what it knows of its own processes, asked (`Directive.probe`) or because one has ended."""
        self._now_s = now_s
        if not self.superseded and self.phase is not Phase.FORMING:
            self.note_evidence(agent_id, probe, evidence)
            if self.phase is Phase.STRAYED and self.all_answered():
                self._fire(Event.ANSWERED, -1)
        return self._flush()

    def answered(self, agent_id: str, *, listening: bool, now_s: float) -> list[Action]:
        """The kernel of a silent agent was asked (`AskKernel`) whether anybody listens at its port."""
        self._now_s = now_s
        place = None if listening or self.superseded else self.world.gone(agent_id, now_s, self.policy.membership)
        if place is not None:
            self.world.dead_nodes.add(place)
            self._fire(Event.NODE_LOST, place)
        return self._flush()

    def move_from(self, node: str, now_s: float) -> tuple[str, list[Action]]:
        """An operator wants a node empty: why that cannot be, or "", and what is done."""
        self._now_s = now_s
        place = self.world.named(node)
        refusal = self.drain_refusal(node, place)
        if not refusal and place is not None:
            self._fire(Event.DRAINED, place)
        return refusal, self._flush()

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass: silent nodes are lost, phases that took too long expire."""
        self._now_s = now_s
        if self.superseded:
            return []
        membership = self.policy.membership
        for status in self.world.to_ask(now_s, membership):
            self._out.append(AskKernel(status.agent_id, status.store_host, status.store_port))
        for node_rank in self.world.silent(now_s, membership):
            self.world.dead_nodes.add(node_rank)
            self._fire(Event.NODE_LOST, node_rank)
        if self.phase is Phase.FORMING:
            self._form()
        self.hold()
        if self._patient:
            self.hurry()
        if self.phase in (Phase.PAUSING, Phase.RESTARTING) and (self.world.vacant or self._undecided):
            self._fire(Event.CANDIDATE, -1)  # one may be heard that was not, or the others may be heard again
        if self.phase is Phase.RUNNING:
            self.let_slow_node_leave()
            if self.watch.question(now_s) is not None:
                self._fire(Event.HUNG, -1)
        if self.phase is Phase.STRAYED and now_s - self._since_s >= ASK_STRAYED_S:
            self.probe_strayed()
        if self._expired():
            self._fire(Event.EXPIRED, -1)
        return self._flush()

    def let_slow_node_leave(self) -> None:
        """Compare the paces of the ranks; whoever holds up all the others may have to give up its place."""
        leaves = self.compare_paces()
        if leaves is not None and not self.drain_refusal("", leaves.places[0]):
            self.drained_for = leaves.reason
            self._fire(Event.DRAINED, leaves.places[0])

    # ---- from reports to events

    def _obeys_another(self, status: NodeStatus) -> bool:
        """A node obeys a newer manager. If it is one of the world, this one's time is over."""
        newer = status.ledger.term > self.term
        counts = self.phase is Phase.FORMING or bool(self.world.known_places(status.agent_id))
        if newer and counts and not self.superseded:
            self.superseded = True
            self._out.append(Superseded(status.ledger.term))
        return newer or self.superseded

    def _hear_holder(self, status: NodeStatus, place: int) -> None:
        unfinished = any(rank.stage is not Stage.EXITED for rank in status.ranks)
        if status.leaving and unfinished and place not in self.world.dead_nodes:
            self._fire(Event.NODE_LEAVES, place)  # before the deaths that it brings look like faults
        if self.phase is not Phase.FORMING and newest_generation(status) > self.world.generation:
            self._fire(Event.OVERTAKEN, place)
        if self.phase is Phase.FORMING:
            self._admit(status)
        elif place not in self.world.dead_nodes:
            self._hear_ranks(status)
        if status.leaving and place not in self.world.dead_nodes:
            self._fire(Event.NODE_LEAVES, place)

    def _admit(self, status: NodeStatus) -> None:
        self.world.admit(status, self._now_s)
        self._since_s = self._since_s or self._now_s
        if self.budget is None:
            limit = self.policy.max_restarts
            self.budget = Budget(
                max_restarts=status.max_restarts if limit is None else limit,
                repeats=self.policy.repeats,
                window_s=self.policy.restart_window_s,
            )
        self.step = max([self.step, *(rank.step for rank in status.ranks)])

    def _form(self) -> None:
        """The job is there when all of its nodes are; a job of an earlier manager, when enough of them are."""
        world, views = self.world, self.world.views()
        if not views:
            return
        ledger = max((view.status for view in views), key=age).ledger
        if ledger.term == 0:
            if self._is_whole():
                self.agree()
                self._run()
            return
        self.trust(ledger)
        newest = max(age(view.status)[:2] for view in views)
        for place, view in list(world.nodes.items()):
            member = place in ledger.places and world.was_held(place, view.status.agent_id)
            displaced = age(view.status)[:2] < newest and not member
            if displaced or _is_alone(view.status, world.generation):
                world.remove(world.on_node(place))  # of an older world, or it has begun as if the job were new
                world.demote(place)
        missing = set(ledger.places) - set(world.holders)
        waited = self._now_s - self._since_s >= self.policy.deadlines.takeover_s
        if not world.ranks or (missing and not (waited and self._may_go_on(ledger.places))):
            return
        world.excluded.update(ledger.excluded)
        if self.budget is not None:
            spent = max(view.status.ledger.spent for view in views)
            self.budget = replace(self.budget, spent=spent, since_s=self._now_s)
        for place in sorted(missing):
            world.expect(place, self.policy.ranks_per_node, self._now_s)
            world.dead_nodes.add(place)
        self._run()

    def _may_be_whole(self, status: NodeStatus) -> bool:
        """Whether so many nodes are heard as this one speaks of. If fewer are, time will tell (`tick`)."""
        return len(self.world.nodes) >= (len(status.ledger.places) or status.node_count or self.policy.node_count)

    def _is_whole(self) -> bool:
        """Every node that torchrun's rendezvous has formed is there: with `--nnodes=MIN:MAX` perhaps fewer than MAX."""
        formed = {view.status.node_count for view in self.world.nodes.values()} or {self.policy.node_count}
        if len(self.world.nodes) < max(formed):
            return False
        return self.world.places == tuple(range(max(formed)))

    def _may_go_on(self, places: tuple[int, ...]) -> bool:
        """Whether enough nodes of an earlier manager's job are heard; if they are not for too long, that is its end."""
        if self.world.has_quorum(places, self._now_s, self.policy.membership):
            return True
        if self._now_s - self._since_s >= self.policy.wait_node_s:
            self._stop(f"for {self.policy.wait_node_s:g} s too few others are heard to take over the job", 1)
        return False

    def _run(self) -> None:
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)
        for node_rank in sorted(self.world.dead_nodes):
            self._fire(Event.NODE_LOST, node_rank)

    def _hear_ranks(self, status: NodeStatus) -> None:
        refused = [error for error in map(self._try_rank, status.ranks) if error is not None]
        if refused:
            raise refused[0]

    def _try_rank(self, status: RankStatus) -> TransitionError | None:
        try:
            self._hear_rank(status)
        except TransitionError as error:
            return error
        return None

    def _hear_rank(self, status: RankStatus) -> None:
        view = self.world.ranks.get(status.rank)
        if view is None or status.incarnation < view.incarnation or status == view.status:
            return
        newer = status.incarnation > view.incarnation
        if view.gone and not newer:  # a second report of the same end only knows its cause better
            self._learn_cause(status)
            return
        stage = stage_in(status, self.world.generation)
        foreign = stage is None or status.term != self.term
        if foreign and self.phase is Phase.RESTARTING:  # another manager's order: it waits for others in vain
            stage = Stage.DEAD if stage is not Stage.EXITED else stage
        if stage is not None:
            self._row(EVENT_OF_STAGE[stage], status.rank)
        if newer:
            self.world.adopt(status, self._now_s)
        if view.starting and not view.joins and status.stage is Stage.TRAINING:
            self._setup_s = max(self._setup_s or 0.0, self._now_s - view.since_s)
        view.note(status)
        if stage is not None:
            self.step = max(self.step, status.step)
            self._fire(EVENT_OF_STAGE[stage], status.rank)

    def _learn_cause(self, status: RankStatus) -> None:
        if self.record is not None and status.rank in self.record.causes and status.cause:
            self.record.causes[status.rank] = status.cause

    def _row(self, event: Event, subject: int) -> "Row[Handler, Phase]":
        row = TABLE.get((self.phase, event))
        if row is None:
            raise TransitionError(
                f"{event.name} of {subject} in phase {self.phase.name}, generation {self.world.generation}"
            )
        return row

    def _fire(self, event: Event, subject: int) -> None:
        self._row(event, subject).act(self, subject)

    def _expired(self) -> bool:
        if self._confirm_until_s is not None:
            return self._now_s >= self._confirm_until_s
        if self.phase is Phase.PAUSING:
            return bool(self.late())
        if self.phase is Phase.RESTARTING and self.world.vacant:
            return self._now_s >= self.waited_s()
        limits = self.policy.deadlines
        limit = {
            Phase.JOINING: limits.join_s,
            Phase.RESUMING: limits.resume_s,
            Phase.RESTARTING: limits.replace_s,
        }.get(self.phase)
        return limit is not None and self._now_s - self._since_s >= limit

    def _review(self) -> None:
        """Back in RUNNING: act on what was heard while another phase could not."""
        while self._review_due:
            self._review_due = False
            for rank, view in sorted(self.world.ranks.items()):
                stage = view.at(self.world.generation)
                if stage is not None and self.phase in LIVE:
                    self._fire(EVENT_OF_STAGE[stage], rank)
            if self.world.candidates and self.phase is Phase.RUNNING:
                self._fire(Event.CANDIDATE, -1)

    def _flush(self) -> list[Action]:
        self._review()
        out, self._out = self._out, []
        return out


def _is_alone(status: NodeStatus, generation: int) -> bool:
    """A node of which no former manager knew. One that only missed the first directive has taken part in a step."""
    known = status.ledger.term > 0 or (generation == 0 and any(rank.step >= 0 for rank in status.ranks))
    return not known


Handler = Callable[[Course, int], None]
_LAST = (Phase.RESTARTING, Phase.FINISHING)
_BEGIN = (Phase.PAUSING, Phase.RESTARTING, Phase.STOPPED)
_NOT_AFTER_THE_END = (Event.EXPIRED, Event.DRAINED, Event.HUNG, Event.ANSWERED)
_OVER: Row[Handler, Phase] = Row(Course.ignore)

TABLE: dict[tuple[Phase, Event], Row[Handler, Phase]] = {
    **rows(LIVE, Event.LOST, Course.lose, Phase.STRAYED, *_BEGIN),
    **rows((*BUILDING, Phase.RESTARTING), Event.LOST, Course.lose_more, *_BEGIN),
    **rows((Phase.FINISHING,), Event.LOST, Course.lose_outside, *_BEGIN),
    **rows(LIVE, Event.STARTED, Course.finish, Phase.FINISHING),
    **rows((Phase.PAUSING,), Event.STARTED, Course.ignore),
    **rows((Phase.RESTARTING,), Event.STARTED, Course.restarted, Phase.RUNNING),
    **rows((Phase.FINISHING,), Event.STARTED, Course.reopen, Phase.RUNNING, *_BEGIN),
    **rows(LIVE, Event.PAUSED, Course.stray, Phase.STRAYED, *_BEGIN),
    **rows((Phase.PAUSING,), Event.PAUSED, Course.pausing, Phase.JOINING, Phase.RESTARTING, Phase.STOPPED),
    **rows((Phase.JOINING, Phase.RESUMING), Event.PAUSED, Course.stray),
    **rows((Phase.RESTARTING,), Event.PAUSED, Course.restarted, Phase.RUNNING),
    **rows((Phase.FINISHING,), Event.PAUSED, Course.stray_outside, Phase.RUNNING, *_BEGIN),
    **rows(LIVE, Event.JOINED, Course.ignore),  # a manager that takes over while a world is being built
    **rows(LIVE, Event.RESTORED, Course.ignore),
    **rows((Phase.JOINING,), Event.JOINED, Course.advance),
    **rows((Phase.JOINING, Phase.RESUMING), Event.RESTORED, Course.advance, Phase.RESUMING),
    **rows((Phase.JOINING, Phase.RESUMING), Event.COMMITTED, Course.advance, Phase.RESUMING, Phase.RUNNING),
    **rows((Phase.JOINING, Phase.RESUMING), Event.FINISHED, Course.advance, Phase.RESUMING, Phase.RUNNING),
    **rows(LIVE, Event.COMMITTED, Course.progress),
    **rows((Phase.RESTARTING,), Event.COMMITTED, Course.restarted, Phase.RUNNING),
    **rows((Phase.FINISHING,), Event.COMMITTED, Course.reopen, Phase.RUNNING, *_BEGIN),
    **rows(LIVE, Event.FINISHED, Course.finish, Phase.FINISHING),
    **rows((Phase.RESTARTING,), Event.FINISHED, Course.restarted, Phase.RUNNING),
    **rows((Phase.FINISHING,), Event.FINISHED, Course.reopen, Phase.RUNNING, *_BEGIN),
    **rows(LIVE, Event.EXITED, Course.exit, Phase.FINISHING, *_BEGIN),
    **rows((Phase.FINISHING,), Event.EXITED, Course.exit, *_BEGIN),
    **rows(BUILDING, Event.EXITED, Course.lose_more, *_BEGIN),
    **rows((Phase.RESTARTING,), Event.EXITED, Course.restarted, Phase.RUNNING),
    **rows((*LIVE, *BUILDING, *_LAST), Event.NODE_LOST, Course.lose_node, *_BEGIN),
    **rows((Phase.FORMING,), Event.NODE_LOST, Course.ignore),
    **rows((Phase.FORMING,), Event.NODE_LEAVES, Course.leave_node, Phase.STOPPED),
    **rows((*LIVE, *BUILDING, *_LAST), Event.NODE_LEAVES, Course.leave_node, *_BEGIN),
    **rows((*LIVE, *BUILDING, *_LAST), Event.OVERTAKEN, Course.follow, Phase.RUNNING),
    **rows((Phase.RUNNING,), Event.HUNG, Course.suspect, Phase.STRAYED),
    **rows((Phase.STRAYED,), Event.ANSWERED, Course.judge, Phase.RUNNING, *_BEGIN),
    **rows((Phase.STRAYED,), Event.EXPIRED, Course.unexplained, Phase.RUNNING, *_BEGIN),
    **rows((Phase.FINISHING,), Event.EXPIRED, Course.unsettled, *_BEGIN),
    **rows((Phase.PAUSING,), Event.EXPIRED, Course.fence_late, *_BEGIN),
    **rows((Phase.JOINING, Phase.RESUMING), Event.EXPIRED, Course.fail_world, *_BEGIN),
    **rows((Phase.RESTARTING,), Event.EXPIRED, Course.stop_late, *_BEGIN),
    **{(Phase.STOPPED, event): _OVER for event in Event if event not in _NOT_AFTER_THE_END},
    **rows((Phase.STOPPED,), Event.OVERTAKEN, Course.stop_again),
    **rows((Phase.PAUSING, Phase.RESTARTING), Event.CANDIDATE, Course.welcome, *_BEGIN),
    **rows((Phase.RUNNING,), Event.CANDIDATE, Course.grow, Phase.PAUSING, Phase.RESTARTING),
    **rows((Phase.STRAYED, Phase.JOINING, Phase.RESUMING, Phase.FINISHING), Event.CANDIDATE, Course.ignore),
    **rows((Phase.RUNNING,), Event.DRAINED, Course.drain, Phase.PAUSING),
    **rows((Phase.JOINING, Phase.RESUMING), Event.DUMPED, Course.dumped, Phase.STOPPED),
    **rows(LIVE, Event.DUMPED, Course.dumped_before, Phase.STOPPED),
    **rows((Phase.PAUSING, *_LAST), Event.DUMPED, Course.ignore),
}
"""Every pair of phase and event that may happen, and what it does."""
