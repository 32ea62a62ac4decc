"""One rank's own table: what its process does at each order of the agent and each event of its main thread.

Rules:

1. Two threads feed it (the main thread of the training, and the control thread that listens to the agent), under one
   lock that the runtime holds.
2. A pause is a state: from PAUSE until the next JOIN the collectives of this process are broken. If nothing has failed
   they are left whole until the step is committed.
   One that comes while the process is outside the resilient function takes effect when it enters.
3. An order of an older generation than the newest known changes nothing.
4. The first commit of every world is reported; the others are not.
5. `TABLE` names every pair in which something may be done. An order that comes in any other state has crossed with what
   the main thread has just done, or is heard twice (`ORDERS`): it changes nothing. Any other event there raises.
6. A RELEASE counts once: heard again, it may find the process at the end of its next resilient function.
7. After DESERTED no order comes any more: whoever waits for one, now or later, gives up at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from taskd.core.table import Row, rows
from taskd.errors import TransitionError
from taskd.wire.messages import Condition, Stage, WorldPlan


class WorkerState(Enum):
    """Where this process stands."""

    SETUP = "setup"  # the script's own code before the resilient function
    TRAINING = "training"
    INTERRUPTED = "interrupted"  # told to pause; the main thread is still inside
    PAUSED = "paused"
    JOINING = "joining"  # the main thread builds the world of the plan
    FINISHED = "finished"  # the resilient function has returned, or a checkpoint was written: nothing is left to do
    RELEASED = "released"


class WorkerEvent(Enum):
    """What may happen. The first seven come from the main thread, the others from the agent."""

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
    """One event with what it brings. Fields that the event does not use keep their defaults."""

    event: WorkerEvent
    generation: int = 0
    step: int = -1
    condition: Condition = Condition.EMPTY
    cause: str = ""
    plan: WorldPlan | None = None
    at_commit: bool = False
    sequence: int = 0
    """Of the directive that an order is from; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the agent the stage that was reached."""

    generation: int
    stage: Stage
    step: int
    condition: Condition
    cause: str = ""


class Break(Enum):
    """What to do with the process's collectives."""

    BREAK = "break"
    MEND = "mend"


@dataclass(frozen=True, slots=True)
class Wake:
    """Hand this to the main thread, which waits for it: a plan to join, or None to leave the resilient function."""

    plan: WorldPlan | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Wake the main thread: nobody will recover this; its exception takes its course."""

    reason: str


Action = Report | Break | Wake | GiveUp


@dataclass(slots=True)
class Worker:
    """The machine of one process. `joins` is true for a newcomer to a living world."""

    generation: int = 0
    joins: bool = False
    state: WorkerState = WorkerState.SETUP
    pause_generation: int = 0
    first_commit: bool = True
    until_commit: bool = False
    """The pause waits for the step to end: the collectives are whole."""
    released: int = 0
    """Sequence of the newest RELEASE that was obeyed."""
    step: int = -1
    condition: Condition = Condition.EMPTY
    deserted: str | None = None
    """Why no order comes any more; None while one may."""
    _out: list[Action] = field(default_factory=list)

    def feed(self, given: Input) -> list[Action]:
        """Take one event, return what is to be done.

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
        """The main thread is to leave the resilient function at its next commit."""
        return self.state is WorkerState.INTERRUPTED

    def ignore(self, _given: Input) -> None:
        """Known, and nothing follows."""

    def enter(self, given: Input) -> None:
        """The resilient function is about to be called: train, or wait for a plan if a new world is being built."""
        if self.joins:
            self._pause(Input(WorkerEvent.ENTER, condition=Condition.EMPTY))
        elif self.pause_generation > self.generation and self.deserted is None:
            self._pause(given)
        else:
            self.state = WorkerState.TRAINING
            self._tell(Stage.TRAINING, given)

    def note_pause(self, given: Input) -> None:
        """Outside the resilient function: the pause waits until it is entered."""
        if given.generation > self.generation:
            self.pause_generation = max(self.pause_generation, given.generation)

    def note_commit(self, given: Input) -> None:
        """A step that was committed outside the resilient function is nobody's news."""
        self.step = given.step

    def interrupt(self, given: Input) -> None:
        """Leave the collectives, at once or when the step is committed. Told both, at once counts."""
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
        """Already out: report for the newer world."""
        if given.generation > self.pause_generation:
            self.pause_generation = given.generation
            self._out.append(Break.BREAK)
            self._pause(Input(WorkerEvent.RAISED, step=self.step, condition=self.condition))

    def out(self, given: Input) -> None:
        """The main thread came out, told to or not."""
        self._pause(given)

    def join(self, given: Input) -> None:
        """The plan of the world that this process waits for."""
        if given.plan is None or given.plan.generation != self.pause_generation:
            return
        self.generation = given.plan.generation
        self.state = WorkerState.JOINING
        self.first_commit = True
        self._out += [Break.MEND, Wake(given.plan)]

    def joined(self, given: Input) -> None:
        """The groups are formed."""
        self._tell(Stage.JOINED, given)

    def restored(self, given: Input) -> None:
        """The state is that of the target step: training goes on."""
        self.state = WorkerState.TRAINING
        self.joins = False
        self._tell(Stage.RESTORED, given)

    def committed(self, given: Input) -> None:
        """A step was committed; the first of a world is news."""
        self.step = given.step
        if self.first_commit:
            self.first_commit = False
            self._tell(Stage.COMMITTED, given)

    def finished(self, given: Input) -> None:
        """The resilient function returned."""
        self.state = WorkerState.FINISHED
        self._tell(Stage.FINISHED, given)

    def dumped(self, given: Input) -> None:
        """A checkpoint of the target step is written: the job's end is awaited."""
        self.state = WorkerState.FINISHED
        self._tell(Stage.DUMPED, given)

    def release(self, given: Input) -> None:
        """Every rank has finished."""
        if given.generation >= self.generation and (given.sequence == 0 or given.sequence > self.released):
            self.released = given.sequence
            self.state = WorkerState.RELEASED
            self._out += [Report(self.generation, Stage.RELEASED, self.step, self.condition), Wake(None)]

    def abandon(self, given: Input) -> None:
        """No recovery will come."""
        self.state = WorkerState.RELEASED
        self._out += [Break.MEND, GiveUp(given.cause)]

    def desert(self, given: Input) -> None:
        """The agent has ended. A pause that waits for a commit is off; one that broke collectives takes its course."""
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
"""Every pair of state and event in which something may be done, and what."""
