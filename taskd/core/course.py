"""The course of a job: what each event does to it.

Rules:

1. A handler is called by `recovery.py`, for an event that its table allows, and finds the reports already noted.
2. From RELEASE on, nobody knows who is still inside the resilient function. A loss then waits until all others are
   inside again or have ended, for a moment (`confirm_s`); what fails by itself has done so in the script's own code,
   where nobody can be kept, and is acted on at once.
3. Success is recorded only after every rank has committed one more step (or has none left).
"""

from dataclasses import dataclass
from typing import Final

from taskd.core.budget import EXIT_CODE
from taskd.core.comings import Comings
from taskd.core.conditions import of_a_connection
from taskd.core.endings import BY_ITSELF
from taskd.core.faults import FaultKind
from taskd.core.findings import names
from taskd.core.phases import BUILDING, DONE, DUMPED, JOINED, LIVE, RESTORED, RESUMED, UP, Note, Phase
from taskd.core.places import age
from taskd.core.record import tell
from taskd.core.reprieve import reprieve
from taskd.core.watch import ANSWER_S
from taskd.core.world import newest_generation
from taskd.wire.messages import Ledger, Order, Stage

LOOK_AGAIN_S: Final = 2.0
"""What a rank does that is waited for is asked so often."""


@dataclass(slots=True)
class Course(Comings):
    """A handler for each kind of event. Its subject is a rank, or for events of a node its place."""

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
        if self._ended_by_itself(rank):
            self._fail(f"{self._process_of(rank)}: {self._cause(rank)}", at_once=True)
            self._attempt(new_world=True)
        elif merged or self._charge([rank]):
            if self.phase is Phase.RESTARTING or self.world.ranks[rank].joins:
                self._fail(f"{self._process_of(rank)}: {self._cause(rank)}")
            self._attempt(new_world=self.phase is not Phase.PAUSING)

    def _ended_by_itself(self, rank: int) -> bool:
        """The script cannot go on in the world that is being built, though nobody outside has harmed that world."""
        if self.phase not in BUILDING or (self.phase is Phase.PAUSING and not self.world.ranks[rank].joins):
            return False
        gone = (self._cause(other) for other, view in self.world.ranks.items() if view.gone)
        return all(cause.startswith(BY_ITSELF) for cause in gone)

    def _process_of(self, rank: int) -> str:
        new = self.world.ranks[rank].joins or self._need_record().restart
        return f"rank {rank}'s new process" if new else f"rank {rank}"

    def _stopped_by(self, rank: int) -> bool:
        """Stop the job if the process has died of a bug of the job's own code."""
        status = self.world.ranks[rank].known
        if status is None or status.kind != FaultKind.FATAL.value:
            return False
        self._stop(f"rank {rank}: {status.cause}; that is a bug of the job, which is not recovered from", 1)
        return True

    def lose_outside(self, rank: int) -> None:
        """A process ended after all had finished: recover when the others can take part again, or soon."""
        if self._cause(rank).startswith(EXIT_CODE):
            self._begin(self._ended())
            return
        until_s = self._now_s + self.policy.deadlines.confirm_s
        self._confirm_until_s = min(self._confirm_until_s or until_s, until_s)
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
        late = self._spare(late)
        if not late:
            return
        new = [rank for rank in late if self.world.ranks[rank].joins]
        if new:
            limit_s, usual_s = self.newcomer_s(), self._setup_s
            usual = f", for which the first processes needed {usual_s:.1f} s" if usual_s is not None else ""
            self._fail(f"{names(new)} did not reach the resilient function within {limit_s:g} s{usual}", at_once=True)
        for rank in late:
            what = "reach the resilient function" if rank in new else "pause"
            record.causes[rank] = f"it did not {what} in time and was fenced"
            self.world.replace(rank, self._now_s, joins=True)
        old = [rank for rank in late if rank not in new]
        if not old or self._charge(old):
            self._attempt(new_world=False)

    def _spare(self, late: list[int]) -> list[int]:
        """Ask what the late ones do, and wait for those that have a reason: the others, once it is known."""
        old = [rank for rank in late if not self.world.ranks[rank].joins]
        limits, now_s = self.policy.deadlines, self._now_s
        if not old:
            return late
        if self._pause_asked_s is None:
            self._pause_asked_s = now_s
            self._ask(None)
            self._order(Order.PAUSE)
            return []
        if now_s - self._pause_asked_s < ANSWER_S and not self.all_answered():
            return []
        self._pause_asked_s = None
        evidence, ranks = self.watch.evidence(now_s), self.world.ranks
        last = not any(view.at(self.world.generation) is Stage.PAUSED and not view.empty for view in ranks.values())
        for rank in old:
            until_s = ranks[rank].since_s + limits.pause_limit_s
            why = reprieve(evidence.get(rank), last=last)
            if not why or now_s >= until_s:
                continue
            if rank not in self._spared:
                text = f"rank {rank} has not paused in {now_s - ranks[rank].since_s:.0f} s, and is waited for: {why}"
                self._out.append(Note(f"{text} (at most {limits.pause_limit_s:g} s, TASKD_PAUSE_LIMIT_S)", warns=True))
            self._spared[rank] = min(now_s + LOOK_AGAIN_S, until_s)
        return [rank for rank in late if self._spared.get(rank, 0.0) <= now_s]

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
        errors = {rank: self._cause(rank) for rank in self.world.at_stage(Stage.PAUSED)}
        known = {rank: cause for rank, cause in errors.items() if cause}
        own = {rank: cause for rank, cause in known.items() if not of_a_connection(cause)}
        others = {rank: cause for rank, cause in known.items() if rank not in own}
        limit = "the world was not built, or committed no step, in time"
        self._fail("; ".join(filter(None, map(tell, (own, others)))) or limit)
        self._attempt(new_world=True)

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

    # ---- a checkpoint and the end; other managers

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
