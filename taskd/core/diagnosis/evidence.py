"""An agent's knowledge of one rank's process at one moment: the material of a diagnosis.

Rules:

1. None means "not known", and an empty tuple "none recorded". No fact is required: a rank without a black box has only
   those from /proc, the cgroup and the wait status.
2. Times are ages: seconds before the moment at which the evidence was taken. So clocks of two nodes are never compared.
3. Communicators and their collectives have ids and numbers that are the same on all ranks that take part.
4. Counters of the cgroup are differences since the process began.
5. Evidence travels between processes: every field has a bound (`wire.bounds`).
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
    """State letter in `/proc/PID/stat`."""

    RUNNING = "R"
    SLEEPING = "S"
    UNINTERRUPTIBLE = "D"
    STOPPED = "T"
    TRACED = "t"
    ZOMBIE = "Z"
    DEAD = "X"
    IDLE = "I"


class Standing(Enum):
    """Phase of a rank, as the rank itself reports it."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Child:
    """A process that a rank has started, most often a DataLoader worker."""

    pid: Pid
    state: RunState | None = None
    wchan: Name | None = None


@dataclass(frozen=True, slots=True)
class Stillness:
    """Activity of a process's threads between two samples. taskd's own threads do not count.

    Attributes:
        window_s: time between the samples.
        main: reason for the main thread's wait, such as "a lock".
        ran: threads that have run, come or gone, the busiest first; only as many as are worth a report.
        share: share of one core that the threads have used.
        waits: threads whose sleep something outside may end: a child, a socket, a file, a timer.
        io_bytes: bytes that the process has read and written, sockets and pipes included.
        disks_idle: True if no disk of the machine has done anything.

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
    """Facts about a process from /proc.

    Attributes:
        wchan: place in the kernel where the main thread sleeps; "" or "0" if it does not sleep.
        exiting: the kernel has begun to take the process down (PF_EXITING), which takes seconds for a large one.
        busy: share of one core that the process has used lately.
        state_s: time for which it has been seen in this state.
        children: living child processes.
        orphans: living children that it left behind at its end, and those that the rank's former processes left behind.

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
    """None if the threads were not sampled twice."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """State of the cgroup that the process lives in. Several ranks may share one."""

    oom_kills: Counter | None = None
    frozen: bool | None = None
    limit_bytes: Counter | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Sender of a signal. `name` is its command, if it could be read in time."""

    pid: Pid
    uid: Counter
    name: Name = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """Wait status of a process that has ended: an exit status or a signal.

    Attributes:
        finished: the script had reported that its training is over.
        fenced: taskd itself has killed it, which is no fault of its own.

    """

    status: Status | None = None
    signum: Status | None = None
    age_s: Seconds | None = None
    finished: bool = False
    fenced: bool = False

    @property
    def clean(self) -> bool:
        """True if it ended with status 0."""
        return self.status == 0


@dataclass(frozen=True, slots=True)
class FatalSignal:
    """The black box's record of a signal that ends the process unless the program handles it.

    Attributes:
        address: the address that the fault was about; None if a process sent the signal.
        frames: native frames, innermost first, as `module+0xoffset`.
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
    """An uncaught exception. `where` is its last frame, as `file:line in function`."""

    kind: Line
    message: Line = ""
    where: Line = ""
    main: bool = True
    """True if it ended the main thread. An exception that ends another thread ends no process."""

    @property
    def text(self) -> str:
        """Error text, as in the last line of a Python traceback."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True)
class Clocks:
    """Signs of life of a process. A fourth clock is `Collective.entered_s` of the newest open event.

    Attributes:
        native_s: time since the core's own thread last beat: five times a second, unless the process stands still.
        gil_s: time for which no thread has answered by taking the GIL; 0.0 if one has, None if none was ever asked.
        main_s: time for which Python's main thread has not answered between two bytecodes; 0.0 and None likewise.

    """

    native_s: Seconds | None = None
    gil_s: Seconds | None = None
    main_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator that the process has open, as its `rank` of `ranks`. `number` is of its newest collective."""

    comm: Unsigned64
    number: Counter
    rank: MaybeIndex = -1
    ranks: MaybeIndex = -1


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation of a communicator.

    Attributes:
        number: position among the communicator's collectives, from 1; 0 for a transfer between two ranks.
        bytes: size of one rank's part; 0 if it is not known.
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
        """True while it has not ended."""
        return self.left_s is None


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A loss or a gradient norm that was NaN or infinite, at the first step with one on this rank."""

    step: MaybeCounter
    what: Name = "loss"
    value: Name = "nan"


@dataclass(frozen=True, slots=True)
class Pace:
    """Time of a rank's newest `steps` steps: the whole step, and its parts in collectives and for data."""

    steps: Counter
    step_s: Seconds
    waited_s: Seconds
    data_s: Seconds = 0.0

    @property
    def own_s(self) -> float:
        """Time that the rank itself needs for a step."""
        return self.step_s - self.waited_s - self.data_s


@dataclass(frozen=True, slots=True)
class LockFile:
    """A file whose removal the main thread waits for, as a compiler cache has them (`core/diagnosis/locks.py`).

    Attributes:
        owner: a sentence about its owner, without the period.
        pid: of its owner, if it lives and is visible from here; else 0.
        stale: True if the file provably has no owner any more.

    """

    path: Line
    owner: Line
    pid: Pid = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Thread:
    """A Python thread and its frames, innermost first, each as `file:line in function`."""

    name: Name
    stack: Annotated[tuple[Line, ...], Some]


@dataclass(frozen=True, slots=True)
class EndSigns:
    """Signs that the process has ended or is about to end.

    Attributes:
        life_lost: the life futex is marked: the process's native thread has died, as the first of all.
        terminated_by: sender of the newest SIGTERM, whatever the process made of it.

    """

    life_lost: bool | None = None
    ending: Ending | None = None
    fatal: FatalSignal | None = None
    terminated_by: Sender | None = None
    error: PythonError | None = None


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Progress and phase of the rank, each with its age.

    Attributes:
        step: the newest committed step; -1 if there is none.

    """

    step: MaybeCounter | None = None
    step_s: Seconds | None = None
    standing: Standing | None = None
    standing_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The rank's part in the job's communication.

    Attributes:
        collectives: newest first, some 16 of each communicator; open ones are always included.
        kernel_s: time for which a kernel of NCCL has been running on the device; 0.0 if none runs, None where NCCL
            does not report it.

    """

    communicators: Annotated[tuple[Communicator, ...], Some] = ()
    collectives: Annotated[tuple[Collective, ...], Some] = ()
    kernel_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Blockers:
    """Obstacles other than its peers that keep the rank from going on.

    Attributes:
        data_wait_s: time for which the main thread has been waiting for the next batch.
        full_disk: path in a file system that has no space left.

    """

    data_wait_s: Seconds | None = None
    full_disk: Line | None = None
    lock_file: LockFile | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """Position of the process in its code.

    Attributes:
        stack: of Python's main thread, innermost first, each frame as `file:line in function`.
        threads: all Python threads; for people.
        native: output of py-spy for a process in which no Python could run; for people.

    """

    stack: Annotated[tuple[Line, ...], Some] = ()
    threads: Annotated[tuple[Thread, ...], Some] = ()
    native: Page = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one rank at one moment, in parts by subject."""

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
        """True if the process has ended or is being taken down."""
        process, end = self.process, self.end
        falling = process is not None and (process.exiting is True or process.state in (RunState.ZOMBIE, RunState.DEAD))
        return end.ending is not None or end.life_lost is True or falling
