"""The course of a job: what each event does to it.

Rules:

1. A handler is called by `recovery.py`, for an event that its table allows, and finds the reports already noted.
2. From RELEASE on, nobody knows who is still inside the resilient function. A loss then waits until all others are
   inside again or have ended, `replace_s` at most.
3. Success is recorded only after every rank has committed one more step (or has none left).
"""

from dataclasses import dataclass, field

from taskd.core.budget import EARLY_S
from taskd.core.faults import FaultKind
from taskd.core.inquest import Inquest
from taskd.core.phases import DONE, DUMPED, JOINED, LIVE, RESTORED, RESUMED, UP, Note, Phase
from taskd.core.places import age
from taskd.core.policy import Strategy
from taskd.core.record import tell
from taskd.core.world import newest_generation
from taskd.wire.messages import Ledger, Order, Stage


@dataclass(slots=True)
class Course(Inquest):
    """A handler for each kind of event. Its subject is a rank, or for events of a node its place."""

    held: set[int] = field(default_factory=set)
    """Lost nodes that nothing is done about yet, since too few others are heard."""
    _cut_off_s: float = 0.0
    """When too few were heard the last time. Whoever was cut off with them is given time to be heard again."""
    _alone_since_s: float | None = None
    drained_for: str = ""
    """Why a node is to be emptied, if it is not on an operator's word."""

    # ---- while training, and from there into a fault

    def ignore(self, _subject: int) -> None:
        """Known, and nothing follows."""

    def lose(self, rank: int) -> None:
        """A process ended while training: a fault begins."""
        if self._stopped_by(rank):
            return
        ended = self._ended()
        if len(ended) < len(self.world.ranks) and all(map(self._failed_to_start, ended)):
            self._await_news(self.policy.deadlines.merge_s)  # if all fail alike, it is a bug and no flaky rank
        else:
            self._begin(ended)

    def _await_news(self, wait_s: float) -> None:
        """Begin nothing yet: what comes until then tells what has happened."""
        until_s = self._confirm_until_s or self._now_s + wait_s
        if self.phase is Phase.RUNNING:
            self._enter(Phase.STRAYED)
        self._confirm_until_s = until_s

    def lose_more(self, rank: int) -> None:
        """A process ended while a recovery runs: it joins the failing set."""
        record = self._need_record()
        if self._stopped_by(rank):
            return
        again = rank in record.causes  # a newcomer that dies as its predecessor did must not pass for one fault with it
        merged = not again and self._now_s - record.detected_s <= self.policy.deadlines.merge_s
        record.causes[rank] = self._cause(rank)
        if self._undecided:
            return  # one fault with that for which nodes are waited for
        failed = self.phase is Phase.RESTARTING or self.world.ranks[rank].joins
        if merged or self._charge([rank]):
            self._attempt(new_world=self.phase is not Phase.PAUSING, failed=failed)

    def _stopped_by(self, rank: int) -> bool:
        """Stop the job if the process has died of a bug of the job's own code."""
        status = self.world.ranks[rank].known
        if status is None or status.kind != FaultKind.FATAL.value:
            return False
        self._stop(f"rank {rank}: {status.cause}; that is a bug of the job, which is not recovered from", 1)
        return True

    def lose_outside(self, _rank: int) -> None:
        """A process ended after all had finished: recover when the others can take part again."""
        self._confirm_until_s = self._confirm_until_s or self._now_s + self.policy.deadlines.replace_s
        self._begin_if_settled()

    def stray(self, _rank: int) -> None:
        """A rank came out of its collectives on its own. Mostly a peer is dead, and that news is on its way."""
        ended = self._ended() if self.phase in LIVE else {}
        if ended:
            self._begin(ended)
        else:
            self._await_news(self.policy.deadlines.confirm_s)

    def unexplained(self, _subject: int) -> None:
        """No loss was reported: whoever has left is the culprit, or every process lives."""
        if not self.overdue():
            return
        if self.watch.hang is not None:
            self.judge(-1)
            return
        ended = self._ended()
        if not ended and self.world.starting() and self._now_s - self._since_s < self.policy.deadlines.replace_s:
            self._confirm_until_s = self._now_s + self.policy.deadlines.confirm_s
            return
        self._begin(ended or {rank: self._cause(rank) for rank in self.world.at_stage(Stage.PAUSED)})

    def pausing(self, _rank: int) -> None:
        """One more rank waits for a plan; when all do, make it."""
        record = self._need_record()
        survivors = self.world.all_paused(newcomers=False)
        if record.paused_s is None and survivors:
            record.paused_s = self._now_s
        if not survivors and record.replaced_s is not None:
            return
        newcomers = self.world.all_paused(newcomers=True)
        if record.replaced_s is None and newcomers:
            record.replaced_s = self._now_s
        waiting = not (survivors and newcomers)
        if not waiting and self._drained is not None:
            self._move_drained(self._drained)
        elif not waiting:
            self.plan_world()

    def fence_late(self, _subject: int) -> None:
        """Ranks that did not come out, or did not come up, in time are replaced."""
        if self._undecided:
            return  # it waits for nodes to be heard
        late = self.late()
        record = self._need_record()
        if any(self.world.ranks[rank].node_rank in self.world.dead_nodes for rank in late):
            self._no_node_came()
            return
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

    def _no_node_came(self) -> None:
        """A place is vacant, and stays so."""
        if self.held or not self.has_quorum():
            return  # it is not for this manager to say that nobody comes
        text, strategy = f"no node came within {self.wait_s():g} s", self._need_record().strategy
        self._tried |= {(strategy, False): text, (strategy, True): text}
        self._out.append(Note(text))
        self._attempt(new_world=True)

    def stop_late(self, _subject: int) -> None:
        """Not even a full restart came up."""
        if self.world.vacant:
            self._no_node_came()
        else:
            self._stop("the restarted processes did not come up in time", 1)

    def progress(self, _rank: int) -> None:
        """A step was committed outside any recovery; by every rank, it is progress."""
        if self.budget is not None and self.budget.remembers and self.world.all_at(RESUMED):
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
        elif self.phase is Phase.STRAYED and self.world.at_stage(Stage.PAUSED):
            self._begin(self._ended())
        elif self.phase is not Phase.FINISHING:
            self.finish(rank)
        elif self._confirm_until_s is not None:
            self._begin_if_settled()

    def lose_node(self, node_rank: int) -> None:
        """An agent is gone: every rank of its node is lost with it."""
        self._lose_node(node_rank, f"node {node_rank} is lost: its agent is not heard any more")

    def leave_node(self, node_rank: int) -> None:
        """torchrun has ended on a node: if its work was not done, the node is lost, and with the last one the job."""
        ranks = self.world.on_node(node_rank)
        if ranks and all(self.world.ranks[rank].exited for rank in ranks):
            return
        text = f"torchrun has ended on node {node_rank}"
        others = set(self.world.places) - self.world.dead_nodes - {node_rank}
        if self.phase is Phase.FORMING and self.world.nodes[node_rank].status.ledger.term > 0:
            self.world.dead_nodes.add(node_rank)  # of an earlier manager's job: the others go on
            return
        if self.phase is Phase.FORMING or not others:
            self._stop(text, 1)
            return
        self.world.dead_nodes.add(node_rank)
        self._lose_node(node_rank, text)

    def _lose_node(self, node_rank: int, text: str) -> None:
        ranks = self.world.on_node(node_rank)
        if self.phase is Phase.STOPPED or all(self.world.ranks[rank].exited for rank in ranks):
            return
        if not self.has_quorum():
            if node_rank not in self.held:
                self.held.add(node_rank)
                self._out.append(Note(f"{text}; too few nodes are heard to go on without it: waiting for more"))
            return
        self.held.discard(node_rank)
        causes = dict.fromkeys(ranks, text)
        if self.record is None:
            self._begin(causes)
        else:
            self.record.causes.update(causes)
            self._attempt(new_world=True)
        self.tell_lost_node(ranks, text)

    def hold(self) -> None:
        """Look again at nodes that too few others were heard to give up."""
        if self.phase in (Phase.STOPPED, Phase.FORMING):
            return
        self.held &= self.world.dead_nodes & set(self.world.places)
        if self._unknown:
            self.plan_world()
        waiting = self.held or self.world.vacant or (set(self.world.agreed) if self._unknown else ())
        if waiting and not self.has_quorum():
            self._cut_off_s = self._now_s
            self._alone_since_s = self._now_s if self._alone_since_s is None else self._alone_since_s
            if self._now_s - self._alone_since_s >= self.policy.wait_node_s:
                waited = f"for {self.policy.wait_node_s:g} s too few others are heard"
                self._stop(f"node {min(waiting)} is lost, and {waited}", 1)
            return
        self._alone_since_s = None
        for node_rank in sorted(self.held):
            if self._now_s - self._cut_off_s >= self.policy.membership.suspect_s:
                self.lose_node(node_rank)

    # ---- nodes that come and go as they should

    def welcome(self, _subject: int) -> None:
        """A node waits for a place, and one is vacant."""
        record = self._need_record()
        if self.held or not self.has_quorum():
            return
        if self._undecided:
            self._attempt(new_world=True)
        elif record.strategy is Strategy.RECOVER and self.fill():
            self._since_s = self._now_s
            self._order(Order.RUN if record.restart else Order.PAUSE)

    def grow(self, _subject: int) -> None:
        """A node waits for a place, and one is absent from the world: at full size again."""
        absent = sorted(set(range(self.policy.node_count)) - set(self.world.places))
        if not absent:
            return
        anew = not self.world.all_cooperate()
        if anew and (self._now_s - self.world.youngest_s() < EARLY_S or not self.has_quorum()):
            return  # they may be on their way into a resilient function; the node is heard again
        grown = []
        for place in absent:
            agent_id = self.world.candidate_for(place)
            if agent_id is not None:
                self.world.expect(place, self.policy.ranks_per_node, self._now_s)
                self.give(place, agent_id)
                grown.append(place)
        if grown:
            text = f"node {', '.join(map(str, grown))} has come (back)"
            self._rearrange(Strategy.ELASTIC_TRAINING, text, {}, restart=anew)

    def drain_refusal(self, node: str, place: int | None) -> str:
        """Why the node that was named, at this place, cannot be emptied; "" if it can."""
        if place is None:
            known = ", ".join(f"{p} ({view.status.host})" for p, view in sorted(self.world.nodes.items()))
            return f"found no node {node!r} in the job, expected one of {known}"
        if self.phase is not Phase.RUNNING:
            return f"the job is {self.phase.value}, expected it to train; try again when it does"
        if len(self.world.places) < 2:
            return "it is the only node, and its state can come from no other; start a second one first"
        if self.world.candidate_for(place) is None:
            return "no node waits for its place; start one more torchrun first"
        if self.world.situation(no_donor=False).uncooperative:
            return "the ranks are not inside a resilient function"
        return ""

    def drain(self, node_rank: int) -> None:
        """Move the ranks of a living node to one that waits: an operator wants it so, or the node is slow."""
        text, self.drained_for = self.drained_for or f"node {node_rank} is drained", ""
        self._rearrange(Strategy.RECOVER, text, dict.fromkeys(self.world.on_node(node_rank), text))
        self._drained = node_rank

    def _move_drained(self, place: int) -> None:
        """All ranks have come to the end of their step, those of the drained node among them: now they move."""
        self._drained = None
        agent_id = self.world.candidate_for(place)
        if agent_id is None:
            self._out.append(Note(f"node {place} is not drained: no node waits for its place any more"))
            self.plan_world()
            return
        self.world.excluded.add(self.world.holders[place])
        self.give(place, agent_id)
        self._need_record().replaced_s = None
        self._order(Order.PAUSE, reason=self._need_record().reason)

    def dumped(self, rank: int) -> None:
        """When every rank has written its part, the checkpoint is complete."""
        if self.world.all_at(DUMPED):
            record = self._need_record()
            self._stop(f"{tell(record.causes)}; a checkpoint of step {record.target_step} was written", 1)
        else:
            self.advance(rank)

    def dumped_before(self, rank: int) -> None:
        """A former manager had a checkpoint written, and was gone before it could end the job."""
        stages = [view.at(self.world.generation) for view in self.world.ranks.values()]
        if all(stage in (None, *DUMPED) for stage in stages):  # ranks of an older generation had no part in it
            step = self.world.ranks[rank].known
            at = f" of step {step.step}" if step is not None else ""
            self._stop(f"an earlier manager ended the job; a checkpoint{at} was written", 1)

    def follow(self, _node_rank: int) -> None:
        """The agents know a newer world than this manager: what they carry is the truth."""
        self.record = None
        self.forget_paces()
        for node in self.world.nodes.values():
            self.world.admit(node.status, self._now_s)
        ledger = max((node.status for node in self.world.nodes.values()), key=age).ledger
        if ledger.term != self.term:
            self.trust(ledger)
        self._out.append(Note(f"the agents carry generation {self.world.generation}: the manager follows"))
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)

    def trust(self, ledger: Ledger) -> None:
        """Take over what an earlier manager knew of the last world that came about."""
        self.world.agreed = {place.node_rank: place.agent_id for place in ledger.agreed}

    def stop_again(self, node_rank: int) -> None:
        """The end of the job must be newer than all that an agent knows."""
        last = self.directive
        self.world.generation = newest_generation(self.world.nodes[node_rank].status)
        if last is not None:
            self._order(Order.STOP, reason=last.reason, exit_code=last.exit_code)

    def _begin_if_settled(self) -> None:
        """After RELEASE: recover as soon as nobody can still be between two resilient functions."""
        if all(self.world.ranks[rank].gone for rank in self.world.outside()):
            self._begin(self._ended())
