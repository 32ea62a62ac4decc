"""State machine of one node: it turns the process of each rank into the process that the manager orders.

Rules:

1. An agent decides nothing about recovery. It compares the manager's newest directive with its processes, and acts.
2. A process is fenced (SIGKILL to its whole group) and confirmed dead before another process may hold its rank.
3. Each order goes to a process once. A directive that arrives again changes nothing.
4. `Start` may take long: the slot waits until `started` is called. Each incarnation and generation gets one `Start`. A
   newer `Start` replaces one that has not been carried out.
5. After STOP no process is started.
6. A node has ranks only while it holds a place. The directive names all holders. A node that is no longer named was
   cut off, drained, or given up. It ends its processes and waits for another place.
7. If two managers send directives, the node obeys the one with the higher term.
8. `TABLE` names every possible pair of slot state and event. Any other pair raises and changes nothing.
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
    """State of one rank's slot."""

    RUNNING = "running"
    FENCED = "fenced"  # killed; its end is awaited
    ENDED = "ended"


class NodeEvent(Enum):
    """Event of a slot."""

    DIRECTED = "directed"
    REPORTED = "reported"
    ENDED = "ended"
    STARTED = "started"


class Need(Enum):
    """Order of the manager that the ranks of a node wait for."""

    NOTHING = "nothing"  # all run
    RECOVERY = "recovery"
    RELEASE = "release"  # all have finished, or have ended well


@dataclass(frozen=True, slots=True)
class Fence:
    """Action: kill this rank's whole process group."""

    rank: JobRank


@dataclass(frozen=True, slots=True)
class Start:
    """Action: start a new process for this rank, from a standby if there is one."""

    rank: JobRank
    incarnation: int
    generation: int
    joins: bool
    term: int = 0
    """Term of the manager that orders the start."""
    cold: bool = False
    """True if a standby must not be used."""


@dataclass(frozen=True, slots=True)
class TellPause:
    """Action: order the rank's process to leave its collectives."""

    rank: JobRank
    generation: int
    reason: str
    at_commit: bool = False


@dataclass(frozen=True, slots=True)
class TellJoin:
    """Action: send the plan to the rank's process."""

    rank: JobRank
    plan: WorldPlan


@dataclass(frozen=True, slots=True)
class TellRelease:
    """Action: release the rank's process, because every rank has finished."""

    rank: JobRank
    generation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StopNode:
    """Action: end the job on this node, for this reason."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Action: kill all processes of this node, because it no longer holds a place."""


@dataclass(frozen=True, slots=True)
class Take:
    """Action: call `occupy` with the ranks of the place that this node holds from now on."""

    place: NodeRank


Action = Evict | Take | Fence | Start | TellPause | TellJoin | TellRelease | StopNode


@dataclass(slots=True)
class Slot:
    """One rank of this node: its process, and the newest order that the process was sent."""

    status: RankStatus
    state: RankState = RankState.RUNNING
    told: tuple[int, int] | None = None
    """Generation and sequence of the newest directive that was passed to its process."""
    words: tuple[str, str] = ("", "")
    """The process's own report of the fault that ends it: the error, and its kind."""
    ordered: tuple[int, int] | None = None
    """Incarnation and generation of the newest `Start` that was given in place of an ended process."""


@dataclass(slots=True)
class Node:
    """State machine of one node."""

    slots: dict[JobRank, Slot] = field(default_factory=dict)
    directive: Directive | None = None
    stopped: bool = False
    agent_id: str = ""
    place: NodeRank | None = None
    _out: list[Action] = field(default_factory=list)

    @property
    def generation(self) -> int:
        """Newest generation that this node has received."""
        return self.directive.generation if self.directive is not None else 0

    def started(self, status: RankStatus) -> None:
        """Record a rank's new process: the first one, the one that `Start` ordered, or one that torchrun started."""
        slot = self.slots.setdefault(status.rank, Slot(status))
        row = self._row(status.rank, NodeEvent.STARTED)
        order = self._order(status.rank)
        # A process that joins will hold the state that its predecessor held.
        if order is not None and order.joins and order.incarnation == status.incarnation:
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
        """Apply the manager's newest directive; an older one changes nothing."""
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
        """Add the ranks of the place that was taken; none has a process yet."""
        for rank in ranks:
            gone = RankStatus(rank=rank, incarnation=-1, generation=0, stage=Stage.DEAD)
            self.slots[rank] = Slot(gone, RankState.ENDED)
            self._fire(rank, NodeEvent.DIRECTED)
        return self._flush()

    def connected(self, rank: JobRank) -> list[Action]:
        """Send the present order to a process that has just connected."""
        self.slots[rank].told = None
        self._fire(rank, NodeEvent.DIRECTED)
        return self._flush()

    def report(self, rank: JobRank, report: WorkerReport) -> list[Action]:
        """Record the stage that a process has reached."""
        slot = self.slots[rank]
        row = self._row(rank, NodeEvent.REPORTED)
        if slot.state is RankState.RUNNING:
            slot.status = replace_status(slot.status, report)
        row.act(self, rank)
        return self._flush()

    def last_words(self, rank: JobRank, cause: str, kind: str) -> None:
        """Record the process's own report of the fault that ends it."""
        self.slots[rank].words = (cause, kind)

    def refuses(self, rank: JobRank, said: Refuses) -> None:
        """Record whether the process can be recovered in place; a newer report replaces an older one."""
        slot = self.slots[rank]
        slot.status = replace(slot.status, no_rebuild=said.no_rebuild, no_newcomer=said.no_newcomer, anew=said.anew)

    def ended(
        self, rank: JobRank, *, status: int | None, cause: str, error: str = "", step: int = -1, at_s: float
    ) -> list[Action]:
        """Record that a process has ended, or that its death is certain.

        A second report may bring a better cause; the stage and its time then stay as they were. `status` has the form
        of Python's subprocess, negative for a signal; None if unknown. `error`: the error that ended the process, if
        it is known. `step`: the newest step that the process has committed, if that is known.
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
            no_rebuild="",  # `no_newcomer` stays: it holds for the successor too, which lacks this process's state
        )
        row.act(self, rank)
        return self._flush()

    # ---- handlers, named in TABLE

    def reconcile(self, rank: JobRank) -> None:
        """Keep a living process and send it the present order, or fence it."""
        slot, order = self.slots[rank], self._order(rank)
        if order is None or self.directive is None:
            return
        if order.incarnation > slot.status.incarnation:
            slot.state = RankState.FENCED
            self._out.append(Fence(rank))
            return
        self._tell(slot, self.directive)

    def reap(self, rank: JobRank) -> None:
        """Kill all that an ended process left behind, and start a successor if one is ordered."""
        slot = self.slots[rank]
        slot.state = RankState.ENDED
        if slot.status.stage is Stage.DEAD:
            self._out.append(Fence(rank))
        self.succeed(rank)

    def succeed(self, rank: JobRank) -> None:
        """Start the ordered process for a rank that has none."""
        slot, order = self.slots[rank], self._order(rank)
        if order is None or order.incarnation <= slot.status.incarnation:
            return
        wanted = (order.incarnation, self.generation)
        if slot.ordered != wanted:
            slot.ordered = wanted
            ledger = self.directive.ledger if self.directive is not None else Ledger()
            self._out.append(Start(rank, order.incarnation, self.generation, order.joins, ledger.term, ledger.cold))

    def take(self, rank: JobRank) -> None:
        """Reset the slot for a new process, which has been sent no order yet."""
        slot = self.slots[rank]
        slot.state, slot.told, slot.ordered, slot.words = RankState.RUNNING, None, None, ("", "")

    def ignore(self, _rank: JobRank) -> None:
        """Accept an event without any effect."""

    # ---- small things

    def _move(self, directive: Directive) -> None:
        """Leave or take a place as the directive orders. A directive without a manager's term assigns no places."""
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
    """Return the order that the ranks wait for."""
    stages = {slot.status.stage for slot in node.slots.values()}
    if stages and stages <= _DONE:
        return Need.RELEASE
    return Need.RECOVERY if stages & _FAILED else Need.NOTHING


def _follows_fences(action: Action) -> bool:
    """Return whether an action follows all fences: a new process waits for the cleanup behind fenced ones."""
    return isinstance(action, Start | TellPause | TellJoin | TellRelease)


def _age(directive: Directive) -> tuple[int, int, int]:
    return directive.ledger.term, directive.generation, directive.sequence


def replace_status(status: RankStatus, report: WorkerReport) -> RankStatus:
    """Return a rank's status after a report of its process."""
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
"""Handler of every possible pair of slot state and event."""
