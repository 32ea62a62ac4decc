"""One node's own table: what is done with each rank's process so that it becomes the one that the manager wants.

Rules:

1. An agent decides nothing about recovery. It compares the manager's newest directive with its processes, and acts.
2. A process is fenced (SIGKILL to its whole group) and seen dead before another may take its rank.
3. An order is given to a process once; a directive that is heard again changes nothing.
4. `Start` may take its time: the slot waits until `started`. It is given once per incarnation and generation, and a
   newer one takes the place of one that has not been carried out.
5. After STOP nothing is started.
6. A node has ranks only while it holds a place. The directive names all holders: one that is not named any more (it was
   cut off, drained, or given up) ends its processes and waits for another place.
7. Of two managers the one with the higher term is obeyed.
8. `TABLE` names every pair of slot state and event that may happen; any other raises and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from taskd.core.table import Row, rows
from taskd.errors import TransitionError
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, Ledger, Order, RankOrder, RankStatus, Refuses, Stage, WorkerReport, WorldPlan
from taskd.wire.state import StateHeld


class RankState(Enum):
    """Where one rank's slot stands."""

    RUNNING = "running"
    FENCED = "fenced"  # killed; its end is awaited
    ENDED = "ended"


class NodeEvent(Enum):
    """What may happen to a slot."""

    DIRECTED = "directed"
    REPORTED = "reported"
    ENDED = "ended"
    STARTED = "started"


class Need(Enum):
    """What the ranks of a node wait for the manager to order."""

    NOTHING = "nothing"  # all run
    RECOVERY = "recovery"
    RELEASE = "release"  # all have finished, or have ended well


@dataclass(frozen=True, slots=True)
class Fence:
    """Kill this rank's whole process group."""

    rank: JobRank


@dataclass(frozen=True, slots=True)
class Start:
    """Start a new process for this rank, from a standby if there is one."""

    rank: JobRank
    incarnation: int
    generation: int
    joins: bool
    term: int = 0
    """Of the manager that wants it."""
    cold: bool = False
    """Not from a standby."""


@dataclass(frozen=True, slots=True)
class TellPause:
    """Tell the rank's process to leave its collectives."""

    rank: JobRank
    generation: int
    reason: str
    at_commit: bool = False


@dataclass(frozen=True, slots=True)
class TellJoin:
    """Hand the plan to the rank's process."""

    rank: JobRank
    plan: WorldPlan


@dataclass(frozen=True, slots=True)
class TellRelease:
    """Every rank has finished."""

    rank: JobRank
    generation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StopNode:
    """End the job on this node, for this reason."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Evict:
    """This node holds no place any more: kill all of its processes."""


@dataclass(frozen=True, slots=True)
class Take:
    """This node holds a place from now on: `occupy` its ranks."""

    place: NodeRank


Action = Evict | Take | Fence | Start | TellPause | TellJoin | TellRelease | StopNode


@dataclass(slots=True)
class Slot:
    """One rank of this node: its process, and what it was last told."""

    status: RankStatus
    state: RankState = RankState.RUNNING
    told: tuple[int, int] | None = None
    """Generation and sequence of the directive that its process was last told."""
    words: tuple[str, str] = ("", "")
    """What its process has said of the fault that it dies of: the error, and its kind."""
    ordered: tuple[int, int] | None = None
    """Incarnation and generation of the newest `Start` that was given in place of an ended process."""


@dataclass(slots=True)
class Node:
    """The machine of one node."""

    slots: dict[JobRank, Slot] = field(default_factory=dict)
    directive: Directive | None = None
    stopped: bool = False
    agent_id: str = ""
    place: NodeRank | None = None
    _out: list[Action] = field(default_factory=list)

    @property
    def generation(self) -> int:
        """Newest generation that this node has heard of."""
        return self.directive.generation if self.directive is not None else 0

    def started(self, status: RankStatus) -> None:
        """A process has been started for a rank: the first, the one that `Start` wanted, or one of torchrun's own."""
        slot = self.slots.setdefault(status.rank, Slot(status))
        row = self._row(status.rank, NodeEvent.STARTED)
        order = self._order(status.rank)
        if order is not None and order.joins and order.incarnation == status.incarnation:  # it will hold what that held
            status = replace(
                status,
                replicas=slot.status.replicas,
                weights=slot.status.weights,
                backs_up=slot.status.backs_up,
                elsewhere=slot.status.elsewhere,
                row=slot.status.row,
            )
        slot.status = status
        row.act(self, status.rank)

    def obey(self, directive: Directive) -> list[Action]:
        """Take in the manager's newest directive; an older one changes nothing."""
        if directive.order is Order.FORM or (self.directive is not None and _age(directive) <= _age(self.directive)):
            return []
        self.directive = directive
        self._move(directive)
        if directive.order is Order.STOP:
            if not self.stopped:
                self._out.append(StopNode(directive.reason, directive.exit_code))
            self.stopped = True
        else:
            mine = [order.rank for order in directive.ranks if order.rank in self.slots]
            for rank in sorted(
                mine, key=lambda rank: self.slots[rank].state is not RankState.ENDED
            ):  # starts take longest
                self._fire(rank, NodeEvent.DIRECTED)
        return sorted(self._flush(), key=_follows_fences)

    def occupy(self, ranks: tuple[JobRank, ...]) -> list[Action]:
        """These are the ranks of the place that was taken; none has a process yet."""
        for rank in ranks:
            gone = RankStatus(rank=rank, incarnation=-1, generation=0, stage=Stage.DEAD)
            self.slots[rank] = Slot(gone, RankState.ENDED)
            self._fire(rank, NodeEvent.DIRECTED)
        return self._flush()

    def connected(self, rank: JobRank) -> list[Action]:
        """A process can be spoken to: tell it what is wanted now."""
        self.slots[rank].told = None
        self._fire(rank, NodeEvent.DIRECTED)
        return self._flush()

    def report(self, rank: JobRank, report: WorkerReport) -> list[Action]:
        """A process tells the stage that it has reached."""
        slot = self.slots[rank]
        row = self._row(rank, NodeEvent.REPORTED)
        if slot.state is RankState.RUNNING:
            slot.status = replace_status(slot.status, report)
        row.act(self, rank)
        return self._flush()

    def last_words(self, rank: JobRank, cause: str, kind: str) -> None:
        """The process says what it dies of."""
        self.slots[rank].words = (cause, kind)

    def refuses(self, rank: JobRank, said: Refuses) -> None:
        """The process says that it cannot be recovered in place, or takes that back."""
        slot = self.slots[rank]
        slot.status = replace(slot.status, no_rebuild=said.no_rebuild, no_newcomer=said.no_newcomer, anew=said.anew)

    def ended(
        self, rank: JobRank, *, status: int | None, cause: str, error: str = "", step: int = -1, at_s: float
    ) -> list[Action]:
        """A process has ended, or its death is certain. Reported again with a better cause, only the cause changes.

        `status` is as Python's subprocess has it, negative for a signal; None if it is not known yet. `error`: the one
        that the process has ended with, if it is known. `step`: the newest that it has committed, if that is known.
        """
        slot = self.slots[rank]
        row = self._row(rank, NodeEvent.ENDED)
        again = slot.state is RankState.ENDED
        clean, before, (words, kind) = status == 0, slot.status, slot.words
        slot.status = replace(
            before,
            stage=before.stage if again else Stage.EXITED if clean else Stage.DEAD,
            cause=cause,
            error=error,
            status=None if clean else status,
            raised=bool(words) and not clean,
            step=max(before.step, step if before.stage is Stage.COMMITTED else -1),  # else it may be an older world's
            at_s=before.at_s if again else at_s,
            kind="" if clean else kind,
            anew="",
            no_rebuild="",  # but `no_newcomer` is also its own successor's: what it had, that one lacks
        )
        row.act(self, rank)
        return self._flush()

    # ---- handlers, named in TABLE

    def reconcile(self, rank: JobRank) -> None:
        """A living process: keep it and tell it what is wanted, or fence it."""
        slot, order = self.slots[rank], self._order(rank)
        if order is None or self.directive is None:
            return
        if order.incarnation > slot.status.incarnation:
            slot.state = RankState.FENCED
            self._out.append(Fence(rank))
            return
        self._tell(slot, self.directive)

    def reap(self, rank: JobRank) -> None:
        """The process is gone: what it left behind is killed, and a successor started if one is wanted."""
        slot = self.slots[rank]
        slot.state = RankState.ENDED
        if slot.status.stage is Stage.DEAD:
            self._out.append(Fence(rank))
        self.succeed(rank)

    def succeed(self, rank: JobRank) -> None:
        """The rank has no process: start the wanted one."""
        slot, order = self.slots[rank], self._order(rank)
        if order is None or order.incarnation <= slot.status.incarnation:
            return
        wanted = (order.incarnation, self.generation)
        if slot.ordered != wanted:
            slot.ordered = wanted
            ledger = self.directive.ledger if self.directive is not None else Ledger()
            self._out.append(Start(rank, order.incarnation, self.generation, order.joins, ledger.term, ledger.cold))

    def take(self, rank: JobRank) -> None:
        """The rank has a process again, which has been told nothing yet."""
        slot = self.slots[rank]
        slot.state, slot.told, slot.ordered, slot.words = RankState.RUNNING, None, None, ("", "")

    def ignore(self, _rank: JobRank) -> None:
        """Known, and nothing follows."""

    # ---- small things

    def _move(self, directive: Directive) -> None:
        """Leave or take a place as the directive says. One of no manager's term says nothing about places."""
        if directive.ledger.term == 0 or not self.agent_id:
            return
        place = next((entry.node_rank for entry in directive.places if entry.agent_id == self.agent_id), None)
        if place == self.place:
            return
        if self.place is not None:
            self.slots.clear()
            self._out.append(Evict())
        self.place = place
        if place is not None and not self.stopped and directive.order is not Order.STOP:
            self._out.append(Take(place))

    def _tell(self, slot: Slot, directive: Directive) -> None:
        rank, generation = slot.status.rank, directive.generation
        newest = (generation, directive.sequence)
        if slot.told == newest:
            return
        match directive.order:
            case Order.PAUSE:
                self._out.append(TellPause(rank, generation, directive.reason, directive.at_commit))
            case Order.JOIN if directive.plan is not None:
                if slot.status.stage is not Stage.PAUSED or slot.status.generation != generation:
                    return
                self._out.append(TellJoin(rank, directive.plan))
            case Order.RELEASE:
                self._out.append(TellRelease(rank, generation, directive.sequence))
            case _:
                pass
        slot.told = newest

    def _order(self, rank: JobRank) -> RankOrder | None:
        if self.directive is None or self.stopped:
            return None
        return next((order for order in self.directive.ranks if order.rank == rank), None)

    def _row(self, rank: JobRank, event: NodeEvent) -> "Row[Handler, RankState]":
        row = TABLE.get((self.slots[rank].state, event))
        if row is None:
            raise TransitionError(f"{event.name} of rank {rank} in slot state {self.slots[rank].state.name}")
        return row

    def _fire(self, rank: JobRank, event: NodeEvent) -> None:
        self._row(rank, event).act(self, rank)

    def _flush(self) -> list[Action]:
        out, self._out = self._out, []
        return out


def need_of(node: Node) -> Need:
    """Return what the ranks wait for."""
    stages = {slot.status.stage for slot in node.slots.values()}
    if stages and stages <= _DONE:
        return Need.RELEASE
    return Need.RECOVERY if stages & _FAILED else Need.NOTHING


def _follows_fences(action: Action) -> bool:
    """Whether an action comes after all fences: a new process waits for what cleans up behind fenced ones."""
    return isinstance(action, Start | TellPause | TellJoin | TellRelease)


def _age(directive: Directive) -> tuple[int, int, int]:
    return directive.ledger.term, directive.generation, directive.sequence


def replace_status(status: RankStatus, report: WorkerReport) -> RankStatus:
    """A rank's status after its process has reported."""
    held = {name: getattr(report, name) for name in StateHeld.__struct_fields__}
    held |= {"weights": report.weights or status.weights, "row": report.row or status.row}
    return replace(
        status,
        generation=report.generation,
        stage=report.stage,
        step=report.step,
        condition=report.condition,
        cause=report.cause,
        error=report.cause,
        at_s=report.at_s,
        **held,
    )


_DONE = {Stage.FINISHED, Stage.RELEASED, Stage.DUMPED, Stage.EXITED}
_FAILED = {Stage.PAUSED, Stage.DEAD}
Handler = Callable[[Node, JobRank], None]

TABLE: dict[tuple[RankState, NodeEvent], Row[Handler, RankState]] = {
    **rows((RankState.RUNNING,), NodeEvent.DIRECTED, Node.reconcile, RankState.FENCED),
    **rows((RankState.RUNNING,), NodeEvent.REPORTED, Node.reconcile, RankState.FENCED),
    **rows((RankState.RUNNING, RankState.FENCED), NodeEvent.ENDED, Node.reap, RankState.ENDED),
    **rows((RankState.FENCED,), NodeEvent.DIRECTED, Node.ignore),
    **rows((RankState.FENCED,), NodeEvent.REPORTED, Node.ignore),
    **rows((RankState.ENDED,), NodeEvent.DIRECTED, Node.succeed),
    **rows((RankState.ENDED,), NodeEvent.REPORTED, Node.ignore),
    **rows((RankState.ENDED,), NodeEvent.ENDED, Node.ignore),
    **rows(RankState, NodeEvent.STARTED, Node.take, RankState.RUNNING),
}
"""Every pair of slot state and event that may happen, and what it does."""
