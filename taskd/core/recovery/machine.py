"""The manager's machine for one job: reports and time come in, actions go out.

Rules:

1. Agents report whole states (`hear`), time passes (`tick`); out come actions. Nothing here reads a clock.
2. `table.py` names every pair of phase and event that may happen. Any other pair raises and changes nothing.
3. A handler is pure: it returns the next phase, and effects that change the job's facts. What an effect returns is an
   event, which is dealt with before the next effect.
4. Who holds no place speaks for no rank, and is not believed that this manager's time is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.watch import Watch
from taskd.core.membership.places import Reporter
from taskd.core.membership.shorthand import is_short
from taskd.core.policy import Policy
from taskd.core.recovery import case, corruption, intake, observing, pace
from taskd.core.recovery.absence import look_again
from taskd.core.recovery.actions import Action, AskKernel, Handler, Superseded
from taskd.core.recovery.deadlines import expired
from taskd.core.recovery.events import (
    EVENT_OF_STAGE,
    Answered,
    AnyEvent,
    Candidate,
    Drained,
    Echoed,
    Event,
    Expired,
    Hung,
    NodeLost,
)
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import issue, send
from taskd.core.recovery.phases import LIVE, AnyPhase, Forming, Phase
from taskd.core.recovery.planning import echoes
from taskd.core.recovery.record import FaultRecord
from taskd.core.recovery.situation import lost_elsewhere, situation
from taskd.core.recovery.table import TABLE
from taskd.core.recovery.world import World
from taskd.core.table import Row
from taskd.errors import TransitionError
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, NodeStatus, Order

ASK_STRAYED_S = 0.1
"""A rank has strayed: the news of a loss that explains it mostly comes within this time, and is not disturbed."""
_FILLING = (Phase.PAUSING, Phase.REARRANGING, Phase.RESTARTING)


@dataclass(slots=True, init=False)
class Recovery:
    """The manager's machine. `sequence` of a manager that takes over must exceed those of its predecessors."""

    job: Job
    state: AnyPhase
    superseded: bool
    """The agents obey a newer manager."""
    _review_due: bool

    def __init__(self, policy: Policy, sequence: int = 0) -> None:
        """Know nothing of the job yet. The first sequence number tells managers apart."""
        self.job = Job(policy)
        self.job.orders.sequence, self.job.orders.term = sequence, sequence + 1
        self.job.case.watch = Watch(policy.tempo)
        self.state = Forming()
        self.superseded = self._review_due = False

    # ---- what is known

    @property
    def phase(self) -> Phase:
        """The name of the present phase."""
        return self.state.kind

    @property
    def policy(self) -> Policy:
        """What the manager was told of the job."""
        return self.job.policy

    @property
    def world(self) -> World:
        """The ranks of the present world, and the nodes of the job."""
        return self.job.world

    @property
    def watch(self) -> Watch:
        """Whether the job gets on, and what is known of its ranks if it does not."""
        return self.job.case.watch

    @property
    def record(self) -> FaultRecord | None:
        """Of the fault under way."""
        return self.job.record

    @property
    def directive(self) -> Directive | None:
        """The newest order."""
        return self.job.orders.directive

    @property
    def term(self) -> int:
        """Number of this manager."""
        return self.job.orders.term

    # ---- what comes in

    def hear(self, status: NodeStatus, now_s: float) -> list[Action]:
        """Take in one agent's report. An old one changes nothing.

        Raises:
            TransitionError: the report says of a rank what cannot happen in this phase. That rank's part has changed
                nothing; what the others' parts have led to comes out of the next call.

        """
        job, world = self.job, self.job.world
        if self._obeys_another(status):
            return self._flush(now_s)
        forming = self.phase is Phase.FORMING
        if forming and self.directive is None:
            self.state = Forming(now_s)
            send(job, now_s, Order.FORM)
        if is_short(status, self.term):
            return self._flush(now_s)
        was_dead = set(world.nodes.dead_nodes)
        standing = world.nodes.hear(status, now_s, claims=range(job.policy.node_count if forming else 0))
        place = world.nodes.place_of(status.agent_id)
        if place in was_dead - world.nodes.dead_nodes:
            intake.give_time(job, place, now_s)
        if standing is Reporter.CANDIDATE and not forming:
            self.fire(Candidate(), now_s)
        elif standing is Reporter.HOLDER and place is not None and status.node_rank in (place, -1):
            found = corruption.note_digests(job, self.phase, status, now_s)  # the last come with a rank's end
            if found is not None:
                self.fire(found, now_s)
            intake.hear_holder(self, status, place, now_s)
            observing.note_progress(job, self.phase, status, place, now_s)
        if self.phase is Phase.FORMING and intake.may_be_whole(job, status):
            intake.form(self, now_s)
        if self.phase is Phase.ANNOUNCING and echoes(job, status):
            self.fire(Echoed(), now_s)
        return self._flush(now_s)

    def hear_evidence(
        self, agent_id: str, probe: int, evidence: Mapping[JobRank, Evidence], now_s: float
    ) -> list[Action]:
        """An agent says what it knows of its own processes, asked (`Directive.probe`) or because one has ended."""
        if not self.superseded and self.phase is not Phase.FORMING:
            observing.note_evidence(self.job, self.phase, agent_id, probe, evidence, now_s)
            if self.phase in (Phase.STRAYED, Phase.SUSPECTING) and case.all_answered(self.job):
                self.fire(Answered(), now_s)
        return self._flush(now_s)

    def answered(self, agent_id: str, *, listening: bool, now_s: float) -> list[Action]:
        """The kernel of a silent agent was asked (`AskKernel`) whether anybody listens at its port."""
        membership = self.job.policy.membership
        place = None if listening or self.superseded else self.world.nodes.gone(agent_id, now_s, membership)
        if place is not None:
            self.world.nodes.dead_nodes.add(place)
            self.fire(NodeLost(place), now_s)
        return self._flush(now_s)

    def move_from(self, node: str, now_s: float) -> tuple[str, list[Action]]:
        """An operator wants a node empty: why that cannot be, or "", and what is done."""
        place = self.world.nodes.named(node)
        refusal = self._drain_refusal(node, place)
        if not refusal and place is not None:
            self.fire(Drained(place, f"node {place} is drained"), now_s)
        return refusal, self._flush(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass: silent nodes are lost, phases that took too long expire."""
        if self.superseded:
            return []
        job, world, membership = self.job, self.job.world, self.job.policy.membership
        for status in world.nodes.to_ask(now_s, membership):
            job.out.append(AskKernel(status.agent_id, status.store_host, status.store_port))
        for place in world.nodes.silent(now_s, membership):
            world.nodes.dead_nodes.add(place)
            self.fire(NodeLost(place), now_s)
        if self.phase is Phase.FORMING:
            intake.form(self, now_s)
            intake.tell_missing(self, now_s)
        if self.phase is Phase.ANNOUNCING:
            self.fire(Echoed(), now_s)
        if self.phase not in (Phase.FORMING, Phase.STOPPED):
            for event in look_again(job, self.state, now_s):
                self.fire(event, now_s)
        if self.phase is Phase.AWAITING_QUORUM or (self.phase in _FILLING and world.vacant):
            self.fire(Candidate(), now_s)  # one may be heard that was not, or the others may be heard again
        if self.phase in LIVE:
            self._look_at_progress(now_s)
        if expired(self.state, job, now_s):
            self.fire(Expired(), now_s)
        return self._flush(now_s)

    def _look_at_progress(self, now_s: float) -> None:
        job = self.job
        if self.phase is Phase.RUNNING:
            leaves = pace.compare_paces(job, now_s)
            place = leaves.places[0] if leaves is not None else None
            if leaves is not None and place is not None and not self._drain_refusal("", place):
                self.fire(Drained(place, leaves.reason), now_s)
        if self.phase is Phase.RUNNING and (asked := observing.restart_asked(job)) is not None:
            self.fire(asked, now_s)
        if self.phase is Phase.RUNNING and job.case.watch.question(now_s) is not None:
            self.fire(Hung(), now_s)
        if self.phase is Phase.STRAYED and now_s - self.state.since_s >= ASK_STRAYED_S:
            case.probe_strayed(job, now_s)

    # ---- what happens

    def row(self, event: Event, subject: JobRank | None = None) -> Row[Handler, Phase]:
        """What is done about an event in the present phase. `subject` is a rank, for the error's text.

        Raises:
            TransitionError: it cannot happen.

        """
        found = TABLE.get((self.state.kind, event))
        if found is None:
            of = f" of {subject}" if subject is not None else ""
            raise TransitionError(f"{event.name}{of} in phase {self.phase.name}, generation {self.world.generation}")
        return found

    def fire(self, event: AnyEvent, now_s: float, row: Row[Handler, Phase] | None = None) -> None:
        """An event has happened. Nothing happens any more to a job that has stopped, unless it goes on elsewhere."""
        if self.phase is Phase.STOPPED and event.kind is not Event.OVERTAKEN:
            return
        phase, effects = (row or self.row(event.kind)).act(self.state, event, self.job, now_s)
        self._review_due |= phase.kind is Phase.RUNNING and self.state is not phase
        self.state = phase
        for effect in effects:
            then = effect.act(self.job, now_s, *effect.given, **effect.named)
            if then is not None:
                self.fire(then, now_s)

    def _obeys_another(self, status: NodeStatus) -> bool:
        """A node obeys a newer manager. If it is one of the world, this one's time is over."""
        newer = status.ledger.term > self.term
        if newer and not self.superseded:
            self.superseded = self.phase is Phase.FORMING or bool(self.world.nodes.known_places(status.agent_id))
            if self.superseded:
                self.job.out.append(Superseded(status.ledger.term))
        return newer or self.superseded

    def _drain_refusal(self, node: str, place: NodeRank | None) -> str:
        """Why the node that was named, at this place, cannot be emptied; "" if it can."""
        if place is None:
            known = ", ".join(f"{p} ({view.status.host})" for p, view in sorted(self.world.nodes.by_place.items()))
            return f"found no node {node!r} in the job, expected one of {known}"
        if self.phase is not Phase.RUNNING:
            return f"the job is {self.phase.value}, expected it to train; try again when it does"
        if len(self.world.places) < 2:
            return "it is the only node, and its state can come from no other; start a second one first"
        if self.world.nodes.candidate_for(place) is None:
            return "no node waits for its place; start one more torchrun first"
        if situation(self.world, no_donor=False).uncooperative:
            return "the ranks are not inside a resilient function"
        lost = lost_elsewhere(self.world, place)
        return f"{lost}; save a checkpoint, and start the job anew without this node" if lost else ""

    def _review(self, now_s: float) -> None:
        """Back in RUNNING: act on what was heard while another phase could not."""
        while self._review_due:
            self._review_due = False
            for rank in self.world.members:
                if self.phase not in LIVE:
                    break
                stage = self.world.ranks[rank].at(self.world.generation)
                if stage is not None:
                    self.fire(EVENT_OF_STAGE[stage](rank), now_s)
            if self.world.nodes.candidates and self.phase is Phase.RUNNING:
                self.fire(Candidate(), now_s)

    def _flush(self, now_s: float) -> list[Action]:
        self._review(now_s)
        issue(self.job)
        out, self.job.out = self.job.out, []
        return out
