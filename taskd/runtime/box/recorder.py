"""The worker's side of the black box: the process's records of itself, and the breaking of stuck collectives.

Rules:

1. Nothing here may slow a step. Every call is one call into C, without a lock. The records of each step are stores into
   the box, because the first call into C after a step costs 10 us.
2. A worker whose core cannot be loaded runs on with a `NullRecorder`; `reason` names the missing part.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from time import monotonic_ns
from traceback import TracebackException

from taskd.errors import ShimError
from taskd.runtime.box.operations import communicator_id
from taskd.runtime.box.shim import check, core, interface, load_core
from taskd.runtime.system.hidden import HiddenThread
from taskd.wire.kinds import JobRank

_LONGEST_END_S = 1.0
_DATA_NS, _WORK, _DATA_SINCE_NS, _DATA_NOW_NS, _WORK_NOW = range(3, 8)
"""Indices of these values among the words, 8 bytes each, of `TASKD_PROGRESS_BYTES`."""


class BoxPhase(IntEnum):
    """Activity of a worker's main thread, as its box records it."""

    STARTING = 0
    TRAINING = 1
    PAUSED = 2
    REBUILDING = 3
    RESTORING = 4
    FINISHED = 5


@dataclass(frozen=True)
class Census:
    """gloo's objects in this process, whether its calls come through the core, and how much was broken so far."""

    sockets: int = 0
    waiters: int = 0
    sockets_hooked: bool = False
    waits_hooked: bool = False
    collectives_hooked: bool = False
    broken: bool = False
    shut: int = 0
    kicked: int = 0


class Recorder:
    """Worker's side of the box. Before `attach`, all records are lost; breaking works without a box too."""

    def __init__(self) -> None:
        load_core()
        self._core = core()
        self._phase = 0
        self._find_progress()
        os.register_at_fork(after_in_child=self._find_progress)

    def _find_progress(self) -> None:
        """Find the progress words of this process's box. Without a box, values stored there are lost."""
        address = self._core.taskd_progress()
        self._progress = memoryview(interface().buffer(address, self._core.TASKD_PROGRESS_BYTES)).cast("q")

    def attach(self, path: Path, rank: JobRank, incarnation: int) -> None:
        """Claim the box and start the native thread. A second call with the same path sets rank and incarnation.

        With `TASKD_AGENT_PID` set, the process from now on ends with its agent. Raises `ShimError`.
        """
        doing = f"black box {path} cannot be attached"
        check(self._core.taskd_attach(os.fsencode(path), rank, incarnation), doing)
        self._find_progress()
        self._answer_probes()

    def _answer_probes(self) -> None:
        """Let the native thread probe the GIL and the main thread, until the interpreter ends."""
        if self._core.taskd_probe(1):
            atexit.register(self._end_probes, HiddenThread(self._answer, "taskd-gil"))

    def _answer(self) -> None:
        while self._core.taskd_gil_wait():  # the return from this call takes the GIL
            pass

    def _end_probes(self, thread: HiddenThread) -> None:
        self._core.taskd_probe(0)
        thread.join(_LONGEST_END_S)

    @property
    def attached(self) -> bool:
        """True if this process has a box. A forked child has none."""
        return bool(self._core.taskd_attached())

    def watch_parent(self, pid: int) -> None:
        """End this process, with its group if it leads one, within 200 ms of the end of `pid`."""
        check(self._core.taskd_watch_parent(pid), f"process {pid} cannot be watched")

    def step(self, step: int) -> None:
        """Record that step `step` is committed. Only the main thread calls this, and `phase`."""
        progress = self._progress
        progress[_DATA_NS], progress[_WORK] = progress[_DATA_NOW_NS], progress[_WORK_NOW]
        progress[0] = step << 8 | self._phase
        progress[1] = monotonic_ns()

    def await_data(self) -> None:
        """Record that the main thread waits for its next batch from now on."""
        self._progress[_DATA_SINCE_NS] = monotonic_ns()

    def got_data(self, work: int) -> None:
        """Record that the main thread has its batch. `work`: amount of work in it, in any unit; 0 if unknown."""
        progress = self._progress
        since_ns, progress[_DATA_SINCE_NS] = progress[_DATA_SINCE_NS], 0
        if since_ns:  # a child that was forked meanwhile has not waited
            progress[_DATA_NOW_NS] += monotonic_ns() - since_ns
        progress[_WORK_NOW] += work

    def phase(self, phase: BoxPhase) -> None:
        """Record the main thread's next activity."""
        self._phase = int(phase)
        self._core.taskd_phase(phase)

    def gil_beat(self) -> None:
        """Record that some Python thread could run."""
        self._core.taskd_gil_beat()

    def last_words(self, error: BaseException) -> None:
        """Record the exception that ends the process, or one of its threads. The newest one stays.

        For excepthooks: raises nothing.
        """
        text = _words(error).encode(errors="replace")
        self._core.taskd_last_words(text, len(text))

    def break_collectives(self) -> int:
        """Break gloo's sockets and waits, and hold them broken until `mend`. Returns how many were hit."""
        return check(self._core.taskd_break(), "collectives cannot be held broken")

    def mend(self) -> None:
        """Let new groups be formed again."""
        self._core.taskd_mend()

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Give the gloo group that this thread forms inside the same name on all its ranks; see `communicator_id`.

        Without a name, the n-th group of a size is taken for the n-th group of that size everywhere.
        """
        self._core.taskd_name_comm(communicator_id(name))
        try:
            yield
        finally:
            self._core.taskd_name_comm(0)

    def census(self) -> Census:
        """Count gloo's objects in this process."""
        out = interface().new("struct taskd_census *")
        self._core.taskd_census(out)
        return Census(
            sockets=out.sockets,
            waiters=out.waiters,
            sockets_hooked=bool(out.hooks & self._core.TASKD_HOOK_SOCKETS),
            waits_hooked=bool(out.hooks & self._core.TASKD_HOOK_WAITS),
            collectives_hooked=bool(out.hooks & self._core.TASKD_HOOK_COLLECTIVES),
            broken=bool(out.broken),
            shut=out.shut,
            kicked=out.kicked,
        )


class NullRecorder:
    """Stand-in for a `Recorder` where the core is missing, for this `reason`. It records and breaks nothing."""

    attached = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def attach(self, path: Path, rank: JobRank, incarnation: int) -> None:
        """Do nothing."""

    def watch_parent(self, pid: int) -> None:
        """Do nothing."""

    def step(self, step: int) -> None:
        """Do nothing."""

    def phase(self, phase: BoxPhase) -> None:
        """Do nothing."""

    def await_data(self) -> None:
        """Do nothing."""

    def got_data(self, work: int) -> None:
        """Do nothing."""

    def gil_beat(self) -> None:
        """Do nothing."""

    def last_words(self, error: BaseException) -> None:
        """Do nothing."""

    def break_collectives(self) -> int:
        """Do nothing; 0 were hit."""
        return 0

    def mend(self) -> None:
        """Do nothing."""

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Do nothing."""
        yield

    def census(self) -> Census:
        """Return an empty census."""
        return Census()


def _words(error: BaseException) -> str:
    """Return type, last frame and message, a line each; the message may have more."""
    said = TracebackException(type(error), error, error.__traceback__, limit=-1, lookup_lines=False)
    kind = type(error).__qualname__
    where = f"{said.stack[-1].filename}:{said.stack[-1].lineno} in {said.stack[-1].name}" if said.stack else ""
    summary = "".join(said.format_exception_only()).strip()
    message = summary.removeprefix(f"{type(error).__module__}.").removeprefix(kind).removeprefix(": ")
    return f"{kind}\n{where}\n{message}"


def open_recorder() -> Recorder | NullRecorder:
    """Return the recorder of this process, or a null one if the core cannot be loaded."""
    try:
        return Recorder()
    except ShimError as error:
        return NullRecorder(str(error))
