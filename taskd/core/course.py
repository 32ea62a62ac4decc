"""The course of a job: what each event does to it.

Rules:

1. A handler is called by `recovery.py`, for an event that its table allows, and finds the reports already noted.
2. From RELEASE on, nobody knows who is still inside the resilient function. A loss then waits until all others are
   inside again or have ended, `replace_s` at most.
3. Success is recorded only after every rank has committed one more step (or has none left).
"""

from dataclasses import dataclass

from taskd.core.attempts import Attempts
from taskd.core.phases import DONE, JOINED, RESTORED, RESUMED, UP, Note, Phase
from taskd.wire.messages import Order, Stage


@dataclass(slots=True)
class Course(Attempts):
    """A handler for each kind of event. Its subject is a rank, or for NODE_* and OVERTAKEN a node."""

    # ---- while training, and from there into a fault

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

    def _begin_if_settled(self) -> None:
        """After RELEASE: recover as soon as nobody can still be between two resilient functions."""
        if all(self.world.ranks[rank].gone for rank in self.world.outside()):
            self._begin(self._ended())
