"""What an agent knows of one rank's process at one moment: the material of a diagnosis.

Rules:

1. None means "not known", an empty tuple "none noted". Nothing has to be known: a rank without a black box has what
   /proc, cgroup and wait status tell.
2. Times are ages: seconds before the moment at which the evidence was taken. So clocks of different nodes never meet.
3. Communicators and their collectives are named by ids and numbers that are the same on all ranks that take part.
4. Counters of the cgroup are differences since the process began.
5. It travels: every field has a bound (`wire.bounds`).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from taskd.core.diagnosis.operation import Operation
from taskd.wire.bounds import (
    Counter,
    Line,
    MaybeCounter,
    MaybeIndex,
    MaybeNode,
    Measured,
    Name,
    Page,
    Pid,
    Seconds,
    Some,
    Status,
    Unsigned64,
)


class RunState(Enum):
    """The letter of `/proc/PID/stat`."""

    RUNNING = "R"
    SLEEPING = "S"
    UNINTERRUPTIBLE = "D"
    STOPPED = "T"
    TRACED = "t"
    ZOMBIE = "Z"
    DEAD = "X"
    IDLE = "I"


class Standing(Enum):
    """What the rank is about, as it says itself."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Child:
    """A process that a rank has started: a DataLoader worker, most often."""

    pid: Pid
    state: RunState | None = None
    wchan: Name | None = None


@dataclass(frozen=True, slots=True)
class Stillness:
    """What the threads of a process have done between two looks. taskd's own threads do not count.

    Attributes:
        window_s: between the looks.
        main: what the main thread waits for.
        ran: threads that have run, come or gone, the busiest in front: as many as are worth telling.
        share: of one core, that they have used.
        waits: threads whose sleep may end from elsewhere: a child, a socket, a file, a timer.
        io_bytes: that the process has read and written, sockets and pipes included.
        disks_idle: no disk of the machine has done anything.

    """

    window_s: Seconds
    main: Line = ""
    ran: Annotated[tuple[Line, ...], Some] = ()
    share: Measured = 0.0
    waits: Annotated[tuple[Line, ...], Some] = ()
    io_bytes: Counter | None = None
    disks_idle: bool | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc says.

    Attributes:
        wchan: where in the kernel the main thread sleeps; "" or "0" if it does not.
        exiting: the kernel has begun to take the process down (PF_EXITING), which takes seconds for a large one.
        busy: share of one core that the process has used lately.
        state_s: for how long it was seen in this state.
        children: those that live.
        orphans: those that it has left behind when it ended, and of the rank's former processes those that still live.

    """

    pid: Pid
    state: RunState | None = None
    wchan: Name | None = None
    exiting: bool | None = None
    busy: Measured | None = None
    state_s: Seconds | None = None
    children: Annotated[tuple[Child, ...], Some] = ()
    orphans: Annotated[tuple[Child, ...], Some] = ()
    still: Stillness | None = None
    """None if it was not looked at twice."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Of the cgroup that the process lives in. Several ranks may share one."""

    oom_kills: Counter | None = None
    frozen: bool | None = None
    limit_bytes: Counter | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a signal. `name` is its command, if it could be asked in time."""

    pid: Pid
    uid: Counter
    name: Name = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """The wait status of a process that has ended: an exit status or a signal.

    Attributes:
        finished: the script had said that its training is over.
        fenced: taskd itself has killed it, which is no fault of its own.

    """

    status: Status | None = None
    signum: Status | None = None
    age_s: Seconds | None = None
    finished: bool = False
    fenced: bool = False

    @property
    def clean(self) -> bool:
        """It ended with status 0."""
        return self.status == 0


@dataclass(frozen=True, slots=True)
class FatalSignal:
    """The black box's record of a signal that nothing survives unless the program handles it.

    Attributes:
        address: what the fault was about; None if a process sent the signal.
        frames: native ones, innermost first, as `module+0xoffset`.
        sender: None if the kernel sent it; the process itself for abort().
        handled: the program's own handler has returned, and the process went on.

    """

    signum: Status
    address: Unsigned64 | None = None
    thread: Name = ""
    frames: Annotated[tuple[Line, ...], Some] = ()
    sender: Sender | None = None
    handled: bool = False


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception that nobody caught. `where` is its last frame, as `file:line in function`."""

    kind: Line
    message: Line = ""
    where: Line = ""
    main: bool = True
    """It ended the main thread. One that ended another thread ends no process."""

    @property
    def text(self) -> str:
        """As Python's last line of a traceback."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True)
class Clocks:
    """Who in the process went on. Of the newest open event, the fourth clock, `Collective.entered_s` tells.

    Attributes:
        native_s: since the core's own thread last beat. It beats five times a second, unless the whole process stands.
        gil_s: for how long nobody has answered by taking the GIL; 0.0 if somebody has, None if nobody was ever asked.
        main_s: for how long Python's main thread has not answered between two bytecodes; 0.0 and None likewise.

    """

    native_s: Seconds | None = None
    gil_s: Seconds | None = None
    main_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator that the process has open, with its `rank` of `ranks`. `number` is of its newest collective."""

    comm: Unsigned64
    number: Counter
    rank: MaybeIndex = -1
    ranks: MaybeIndex = -1


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation of a communicator.

    Attributes:
        number: which collective of the communicator, from 1; 0 for a transfer between two ranks.
        bytes: of one rank's part; 0 if it is not known.
        peer: root or partner, by its rank in the communicator; -1 if there is none or it is not known.
        left_s: None while it is open.
        step: the step under way when it was entered, if that is known.
        enqueued: it ends for the host when it is enqueued, as those of NCCL and HCCL do.

    """

    op: Operation
    comm: Unsigned64
    number: Counter
    bytes: Counter = 0
    peer: MaybeIndex = -1
    entered_s: Seconds | None = None
    left_s: Seconds | None = None
    step: MaybeCounter | None = None
    enqueued: bool = False

    @property
    def open(self) -> bool:
        """It has not ended."""
        return self.left_s is None


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A loss or a gradient norm that was NaN or infinite: the first step at which this rank saw one."""

    step: MaybeCounter
    what: Name = "loss"
    value: Name = "nan"


@dataclass(frozen=True, slots=True)
class Pace:
    """The newest `steps` steps of a rank: the whole step, and how much of it was spent in collectives and for data."""

    steps: Counter
    step_s: Seconds
    waited_s: Seconds
    data_s: Seconds = 0.0

    @property
    def own_s(self) -> float:
        """What the rank itself needs for a step."""
        return self.step_s - self.waited_s - self.data_s


@dataclass(frozen=True, slots=True)
class LockFile:
    """A file that the main thread waits for until it is gone, as a compiler cache has them (`core/diagnosis/locks.py`).

    Attributes:
        owner: whose it is, as a sentence without an end.
        pid: of its owner, where that lives and is seen from here; else 0.
        stale: it is provably nobody's.

    """

    path: Line
    owner: Line
    pid: Pid = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Thread:
    """A Python thread and its frames, innermost first, each `file:line in function`."""

    name: Name
    stack: Annotated[tuple[Line, ...], Some]


@dataclass(frozen=True, slots=True)
class EndSigns:
    """What has ended the process, or is about to.

    Attributes:
        life_lost: the life futex is marked: the process's native thread has died, as the first of all.
        terminated_by: who sent the newest SIGTERM, whatever the process made of it.

    """

    life_lost: bool | None = None
    ending: Ending | None = None
    fatal: FatalSignal | None = None
    terminated_by: Sender | None = None
    error: PythonError | None = None


@dataclass(frozen=True, slots=True)
class RankPosition:
    """How far the rank is, and what it is about, each with its age.

    Attributes:
        step: the newest that was committed; -1 if none was.

    """

    step: MaybeCounter | None = None
    step_s: Seconds | None = None
    standing: Standing | None = None
    standing_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The rank's part in the job's communication.

    Attributes:
        collectives: the newest in front, some 16 of each communicator, open ones always.
        kernel_s: for how long a kernel of NCCL has been running on the device; 0.0 if none does, None where NCCL does
            not tell.

    """

    communicators: Annotated[tuple[Communicator, ...], Some] = ()
    collectives: Annotated[tuple[Collective, ...], Some] = ()
    kernel_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Blockers:
    """What beside its peers keeps the rank from going on.

    Attributes:
        data_wait_s: for how long the main thread has been waiting for the next batch.
        full_disk: a file system, by a path in it, that has no space left.

    """

    data_wait_s: Seconds | None = None
    full_disk: Line | None = None
    lock_file: LockFile | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """Where in its code the process is.

    Attributes:
        stack: of Python's main thread, innermost first, each `file:line in function`.
        threads: all Python threads; for people.
        native: what py-spy has printed of a process in which no Python could run; for people.

    """

    stack: Annotated[tuple[Line, ...], Some] = ()
    threads: Annotated[tuple[Thread, ...], Some] = ()
    native: Page = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One rank at one moment, in parts by what is told."""

    node: MaybeNode | None = None
    process: Process | None = None
    cgroup: Cgroup | None = None
    end: EndSigns = EndSigns()
    clocks: Clocks | None = None
    position: RankPosition = RankPosition()
    calls: RankCalls = RankCalls()
    blockers: Blockers = Blockers()
    non_finite: NonFinite | None = None
    pace: Pace | None = None
    frames: Frames = Frames()

    @property
    def gone(self) -> bool:
        """The process has ended, or is being taken down."""
        process, end = self.process, self.end
        falling = process is not None and (process.exiting is True or process.state in (RunState.ZOMBIE, RunState.DEAD))
        return end.ending is not None or end.life_lost is True or falling
