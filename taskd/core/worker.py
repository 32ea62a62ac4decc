"""State machine of one rank's process: its response to each order of the agent and each event of its main thread.

Rules:

1. Two threads feed it, under one lock that the runtime holds: the main thread of the training, and the control thread
   that receives the agent's orders.
2. A pause is a state: from PAUSE until the next JOIN the collectives of this process are broken. If nothing has failed,
   they stay whole until the step is committed. A pause that arrives outside the resilient function takes effect when
   the process enters it.
3. An order of an older generation than the newest known one changes nothing.
4. The first commit of every world is reported; the others are not.
5. `TABLE` names every pair of state and event that may have an effect. An order (`ORDERS`) without a row changes
   nothing: it has crossed with an event of the main thread, or has arrived twice. Any other event without a row raises.
6. A RELEASE counts once. A repeated one may reach the process at the end of its next resilient function.
7. After DESERTED no order arrives any more. A process that waits for one, now or later, gives up at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from taskd.core.table import Row, rows
from taskd.errors import TransitionError
from taskd.wire.messages import Condition, Stage, WorldPlan


class WorkerState(Enum):
    """State of this process."""

    SETUP = "setup"  # the script's own code before the resilient function
    TRAINING = "training"
    INTERRUPTED = "interrupted"  # ordered to pause; the main thread is still inside
    PAUSED = "paused"
    JOINING = "joining"  # the main thread builds the world of the plan
    FINISHED = "finished"  # the resilient function has returned, or a checkpoint was written: nothing is left to do
    RELEASED = "released"


class WorkerEvent(Enum):
    """Event of the process. The first seven come from the main thread, the others from the agent."""

    ENTER = "enter"
    RAISED = "raised"
    RETURNED = "returned"
    COMMITTED = "committed"
    JOINED = "joined"
    RESTORED = "restored"
    DUMPED = "dumped"
    PAUSE = "pause"
    JOIN = "join"
    RELEASE = "release"
    ABANDON = "abandon"
    DESERTED = "deserted"  # the agent has ended, and its torchrun goes on


@dataclass(frozen=True, slots=True)
class Input:
    """One event with its data. Fields that the event does not use keep their defaults."""

    event: WorkerEvent
    generation: int = 0
    step: int = -1
    condition: Condition = Condition.EMPTY
    cause: str = ""
    plan: WorldPlan | None = None
    at_commit: bool = False
    sequence: int = 0
    """Sequence number of the directive behind an order; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Report:
    """Action: report the stage that was reached to the agent."""

    generation: int
    stage: Stage
    step: int
    condition: Condition
    cause: str = ""


class Break(Enum):
    """Action on the process's collectives: break them, or mend them."""

    BREAK = "break"
    MEND = "mend"


@dataclass(frozen=True, slots=True)
class Wake:
    """Action: wake the waiting main thread with a plan to join, or with None to leave the resilient function."""

    plan: WorldPlan | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Action: wake the main thread to let its exception take its course, because no recovery will follow."""

    reason: str


Action = Report | Break | Wake | GiveUp


@dataclass(slots=True)
class Worker:
    """State machine of one process. `joins` is true for a newcomer to a living world."""

    generation: int = 0
    joins: bool = False
    state: WorkerState = WorkerState.SETUP
    pause_generation: int = 0
    first_commit: bool = True
    until_commit: bool = False
    """True while the pause waits for the step to end: the collectives are whole."""
    released: int = 0
    """Sequence of the newest RELEASE that was obeyed."""
    step: int = -1
    condition: Condition = Condition.EMPTY
    deserted: str | None = None
    """Reason why no order arrives any more; None while one may."""
    _out: list[Action] = field(default_factory=list)

    def feed(self, given: Input) -> list[Action]:
        """Apply one event and return the actions that follow.

        Raises:
            TransitionError: the event cannot happen in this state; nothing has changed.

        """
        row = TABLE.get((self.state, given.event))
        if row is None and given.event in ORDERS:
            return []
        if row is None:
            raise TransitionError(f"{given.event.name} in state {self.state.name}, generation {self.generation}")
        row.act(self, given)
        if self.deserted is not None and self.state in _WAITING:
            self.abandon(Input(WorkerEvent.ABANDON, cause=self.deserted))
        out, self._out = self._out, []
        return out

    @property
    def interrupted(self) -> bool:
        """True while the main thread is to leave the resilient function at its next commit."""
        return self.state is WorkerState.INTERRUPTED

    def ignore(self, _given: Input) -> None:
        """Accept an event without any effect."""

    def enter(self, given: Input) -> None:
        """Enter the resilient function: train, or wait for a plan if a new world is being built."""
        if self.joins:
            self._pause(Input(WorkerEvent.ENTER, condition=Condition.EMPTY))
        elif self.pause_generation > self.generation and self.deserted is None:
            self._pause(given)
        else:
            self.state = WorkerState.TRAINING
            self._tell(Stage.TRAINING, given)

    def note_pause(self, given: Input) -> None:
        """Record a pause that arrives outside the resilient function; it takes effect on entry."""
        if given.generation > self.generation:
            self.pause_generation = max(self.pause_generation, given.generation)

    def note_commit(self, given: Input) -> None:
        """Record a step that was committed outside the resilient function, without a report."""
        self.step = given.step

    def interrupt(self, given: Input) -> None:
        """Leave the collectives, at once or when the step is committed. If both are ordered, leave at once."""
        if given.generation > max(self.generation, self.pause_generation):
            self.until_commit = given.at_commit and self.state is WorkerState.TRAINING
            self.pause_generation = given.generation
            self.state = WorkerState.INTERRUPTED
        elif given.generation == self.pause_generation and self.until_commit and not given.at_commit:
            self.until_commit = False
        else:
            return
        if not self.until_commit:
            self._out.append(Break.BREAK)

    def pause_again(self, given: Input) -> None:
        """Report for a newer world; the main thread is already out."""
        if given.generation > self.pause_generation:
            self.pause_generation = given.generation
            self._out.append(Break.BREAK)
            self._pause(Input(WorkerEvent.RAISED, step=self.step, condition=self.condition))

    def out(self, given: Input) -> None:
        """Pause, because the main thread has left the resilient function, ordered to or not."""
        self._pause(given)

    def join(self, given: Input) -> None:
        """Build the world of this plan, if it is the one that this process waits for."""
        if given.plan is None or given.plan.generation != self.pause_generation:
            return
        self.generation = given.plan.generation
        self.state = WorkerState.JOINING
        self.first_commit = True
        self._out += [Break.MEND, Wake(given.plan)]

    def joined(self, given: Input) -> None:
        """Report that the groups are formed."""
        self._tell(Stage.JOINED, given)

    def restored(self, given: Input) -> None:
        """Resume training: the state is that of the target step."""
        self.state = WorkerState.TRAINING
        self.joins = False
        self._tell(Stage.RESTORED, given)

    def committed(self, given: Input) -> None:
        """Record a committed step; report the first one of a world."""
        self.step = given.step
        if self.first_commit:
            self.first_commit = False
            self._tell(Stage.COMMITTED, given)

    def finished(self, given: Input) -> None:
        """Report that the resilient function has returned."""
        self.state = WorkerState.FINISHED
        self._tell(Stage.FINISHED, given)

    def dumped(self, given: Input) -> None:
        """Report that a checkpoint of the target step is written, and wait for the job's end."""
        self.state = WorkerState.FINISHED
        self._tell(Stage.DUMPED, given)

    def release(self, given: Input) -> None:
        """Leave the resilient function, because every rank has finished."""
        if given.generation >= self.generation and (given.sequence == 0 or given.sequence > self.released):
            self.released = given.sequence
            self.state = WorkerState.RELEASED
            self._out += [Report(self.generation, Stage.RELEASED, self.step, self.condition), Wake(None)]

    def abandon(self, given: Input) -> None:
        """Give up, because no recovery will follow."""
        self.state = WorkerState.RELEASED
        self._out += [Break.MEND, GiveUp(given.cause)]

    def desert(self, given: Input) -> None:
        """Record that the agent has ended.

        A pause that waits for a commit is cancelled. A pause that has broken collectives takes its course.
        """
        self.deserted = given.cause
        if self.state is WorkerState.INTERRUPTED and self.until_commit:
            self.state, self.until_commit = WorkerState.TRAINING, False

    def _pause(self, given: Input) -> None:
        self.state = WorkerState.PAUSED
        self.pause_generation = max(self.pause_generation, self.generation)
        self.step, self.condition = given.step, given.condition
        self._out.append(Report(self.pause_generation, Stage.PAUSED, given.step, given.condition, given.cause))

    def _tell(self, stage: Stage, given: Input) -> None:
        self.step, self.condition = given.step, given.condition
        self._out.append(Report(self.generation, stage, given.step, given.condition))


Handler = Callable[[Worker, Input], None]
_OUTSIDE = (WorkerState.SETUP, WorkerState.RELEASED)
ORDERS = (WorkerEvent.PAUSE, WorkerEvent.JOIN, WorkerEvent.RELEASE, WorkerEvent.ABANDON)
_WAITING = (WorkerState.PAUSED, WorkerState.FINISHED)


TABLE: dict[tuple[WorkerState, WorkerEvent], Row[Handler, WorkerState]] = {
    # The main thread. The script may call a second resilient function after the first, or one again that has raised.
    **rows(_OUTSIDE, WorkerEvent.ENTER, Worker.enter, WorkerState.TRAINING, WorkerState.PAUSED),
    **rows((WorkerState.TRAINING,), WorkerEvent.ENTER, Worker.ignore),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.ENTER, Worker.out, WorkerState.PAUSED),
    **rows(
        (WorkerState.TRAINING, WorkerState.INTERRUPTED, WorkerState.JOINING),
        WorkerEvent.RAISED,
        Worker.out,
        WorkerState.PAUSED,
    ),
    **rows((WorkerState.TRAINING,), WorkerEvent.RETURNED, Worker.finished, WorkerState.FINISHED),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.RETURNED, Worker.out, WorkerState.PAUSED),
    **rows((WorkerState.TRAINING,), WorkerEvent.COMMITTED, Worker.committed),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.COMMITTED, Worker.ignore),
    **rows(_OUTSIDE, WorkerEvent.COMMITTED, Worker.note_commit),
    **rows((WorkerState.JOINING,), WorkerEvent.JOINED, Worker.joined),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.JOINED, Worker.ignore),
    **rows((WorkerState.JOINING,), WorkerEvent.RESTORED, Worker.restored, WorkerState.TRAINING),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.RESTORED, Worker.ignore),
    **rows((WorkerState.TRAINING,), WorkerEvent.DUMPED, Worker.dumped, WorkerState.FINISHED),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.DUMPED, Worker.ignore),
    # Orders.
    **rows((WorkerState.TRAINING, WorkerState.JOINING), WorkerEvent.PAUSE, Worker.interrupt, WorkerState.INTERRUPTED),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.PAUSE, Worker.interrupt),
    **rows((WorkerState.PAUSED,), WorkerEvent.PAUSE, Worker.pause_again),
    **rows((WorkerState.FINISHED,), WorkerEvent.PAUSE, Worker.pause_again, WorkerState.PAUSED),
    **rows(_OUTSIDE, WorkerEvent.PAUSE, Worker.note_pause),
    **rows((WorkerState.PAUSED,), WorkerEvent.JOIN, Worker.join, WorkerState.JOINING),
    **rows((WorkerState.FINISHED,), WorkerEvent.RELEASE, Worker.release, WorkerState.RELEASED),
    **rows(_WAITING, WorkerEvent.ABANDON, Worker.abandon, WorkerState.RELEASED),
    **rows((*_OUTSIDE, WorkerState.TRAINING, WorkerState.JOINING), WorkerEvent.DESERTED, Worker.desert),
    **rows((WorkerState.INTERRUPTED,), WorkerEvent.DESERTED, Worker.desert, WorkerState.TRAINING),
    **rows(_WAITING, WorkerEvent.DESERTED, Worker.desert, WorkerState.RELEASED),
}
"""Handler of every pair of state and event that may have an effect."""
