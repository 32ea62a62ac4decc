"""The black box: a small shared file that a worker writes and its agent reads, also after the worker's death.

Rules:

1. `Box` is the agent's side. The worker's side is `Recorder`, which has its own file and is exported here as well.
2. Every error is a `ShimError` with its remedy. A box may be cut at any moment: a read of it then raises, too.
3. Times are nanoseconds of `time.monotonic_ns()`; 0 means never.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import ceil
from pathlib import Path
from typing import Any

from taskd.core.diagnosis.operation import Operation
from taskd.errors import ShimError
from taskd.runtime.box.operations import (
    Backend,
    BoxCommunicator,
    BoxEvent,
    communicator_id,
    event,
    newest_events,
    newest_kernel,
    read_communicators,
)
from taskd.runtime.box.postmortem import (
    BoxSender,
    BoxSignal,
    Frame,
    LastWords,
    Postmortem,
    Request,
    read_fault,
    read_last_words,
    read_request,
)
from taskd.runtime.box.recorder import BoxPhase, Census, NullRecorder, Recorder, open_recorder
from taskd.runtime.box.shim import check, core, interface, library_path, load_core, told
from taskd.wire.kinds import JobRank

__all__ = [
    "Backend", "Box", "BoxClocks", "BoxCommand", "BoxCommunicator", "BoxEvent", "BoxPhase", "BoxSender", "BoxSignal",
    "Census", "Frame", "LastWords", "Life", "NullRecorder", "Operation", "Postmortem", "Reading", "Recorder", "Request",
    "communicator_id", "library_path", "load_core", "open_recorder",
]  # fmt: skip


class Life(Enum):
    """State of a box's owner. After a death by exec, the new program claims the box again."""

    UNCLAIMED = 0
    HELD = 1
    LOST = 2


class BoxCommand(Enum):
    """Orders to the core's own thread, which obeys whatever the worker's Python threads are stuck in."""

    PING = 1
    BREAK = 2  # break gloo's collectives and hold them broken
    MEND = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """A box at one moment. Every field is whole; fields of different groups may be some ns apart."""

    owner_pid: int
    rank: JobRank
    incarnation: int
    claims: int
    claimed_ns: int
    native_ns: int
    native_count: int
    gil_ns: int
    main_ns: int
    gil_asked_ns: int
    main_asked_ns: int
    step: int
    phase: int
    step_ns: int
    phase_ns: int
    data_ns: int
    work: int
    data_since_ns: int
    life: Life
    exit_status: int | None
    end_ns: int
    events: int
    dropped: int


@dataclass(frozen=True, slots=True)
class BoxClocks:
    """Newest sign of life of each part of the process. Compare the times with `time.monotonic_ns()`.

    Attributes:
        native_ns: of the core's own thread, every 200 ms. It stands still if the whole process does.
        gil_ns: of some Python thread that had the GIL.
        main_ns: of Python's main thread, between two bytecodes.
        gil_asked_ns: since when no thread has answered by taking the GIL; 0 if none is asked.
        main_asked_ns: since when the main thread has not answered; 0 if it has.
        open_event: the newest recorded operation that has not ended.
    """

    native_ns: int
    gil_ns: int
    main_ns: int
    gil_asked_ns: int
    main_asked_ns: int
    open_event: BoxEvent | None


def _milliseconds(timeout_s: float | None) -> int:
    return -1 if timeout_s is None else max(0, ceil(timeout_s * 1000))


class BoxClosedError(ShimError):
    """Use of a box after it was closed."""


class Box:
    """Agent's side of one worker's box. Threads may share it; `close` ends the waits of all of them."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self._handle = handle
        self._users = 0
        self._idle = threading.Condition()

    @classmethod
    def create(cls, path: Path) -> "Box":
        """Make a new box and reserve its space. Raises `ShimError`, also if the path exists or no space is left."""
        return cls._made(path, "taskd_box_create", "black box cannot be made at")

    @classmethod
    def open(cls, path: Path) -> "Box":
        """Open a box that exists. Raises `ShimError` if there is none of this version and of this user."""
        return cls._made(path, "taskd_box_open", "black box cannot be opened at")

    @classmethod
    def _made(cls, path: Path, function: str, doing: str) -> "Box":
        handle = interface().new("struct taskd_handle **")
        check(getattr(core(), function)(os.fsencode(path), handle), f"{doing} {path}")
        return cls(path, handle[0])

    @contextmanager
    def _in_use(self) -> Iterator[Any]:
        with self._idle:
            if self._handle is None:
                raise self._closed_error()
            handle = self._handle
            self._users += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def _closed_error(self) -> BoxClosedError:
        return BoxClosedError(f"black box {self.path} is used after it was closed; close it last")

    @property
    def closed(self) -> bool:
        """True once `close` has begun."""
        return self._handle is None

    def read(self) -> Reading:
        """Return the present state of the box."""
        out = interface().new("struct taskd_reading *")
        with self._in_use() as handle:
            told(core().taskd_box_read(handle, out))
        values = {name: getattr(out, name) for name in Reading.__dataclass_fields__ if name != "exit_status"}
        ended = out.end_cause == core().TASKD_END_EXIT
        values |= {"life": Life(out.life), "end_ns": out.end_ns if ended else 0}
        return Reading(**values, exit_status=out.end_status if ended else None)

    def events(self, most: int = 1024) -> list[BoxEvent]:
        """Return the newest whole events, newest first."""
        out = interface().new("struct taskd_event[]", most)
        with self._in_use() as handle:
            count = told(core().taskd_box_events(handle, out, most))
        return [event(raw) for raw in out[0:count]]

    def operations(self, each: int = 16, most: int = 48) -> list[BoxEvent]:
        """Return the newest operations of communicators, newest first.

        At most `each` of one communicator and `most` in all are returned, and all that are open.
        """
        with self._in_use() as handle:
            return newest_events(handle, each, most)

    def kernel(self) -> BoxEvent | None:
        """Return the newest time in which kernels of NCCL ran on the device; None if NCCL has reported none."""
        with self._in_use() as handle:
            return newest_kernel(handle)

    def news(self, reading: Any, events: Any, after: int) -> int:
        """Copy a reading, and the newest whole events after ticket `after`, newest first. For frequent calls.

        Both targets are memory of `interface()`. If there are more events than room, the oldest are left out. Returns
        the number of events. Some events up to `after` may be among them.
        """
        library = core()
        with self._idle:  # nothing here waits, so the lock alone keeps the handle
            if self._handle is None:
                raise self._closed_error()
            told(library.taskd_box_read(self._handle, reading))
            most = min(reading.events - after, len(events))
            return told(library.taskd_box_events(self._handle, events, most)) if most > 0 else 0

    def postmortem(self, said: Reading | None = None) -> Postmortem:
        """Return the traces of the process's end, also while it still runs. `said`: a reading that was just made."""
        said = said or self.read()
        with self._in_use() as handle:
            return Postmortem(
                exit_status=said.exit_status,
                exit_ns=said.end_ns,
                fault=read_fault(handle),
                request=read_request(handle),
                last_words=read_last_words(handle),
            )

    def communicators(self) -> list[BoxCommunicator]:
        """Return all that the process has opened, the first one in front; of more than 128, the newest."""
        with self._in_use() as handle:
            return read_communicators(handle)

    def clocks(self) -> BoxClocks:
        """Return the clocks that distinguish a stopped process, a held GIL and a stuck main thread."""
        said, out = self.read(), interface().new("struct taskd_event *")
        with self._in_use() as handle:
            opened = told(core().taskd_box_open_event(handle, out))
        return BoxClocks(
            said.native_ns,
            said.gil_ns,
            said.main_ns,
            said.gil_asked_ns,
            said.main_asked_ns,
            event(out) if opened else None,
        )

    def await_death(self, timeout_s: float | None = None) -> bool:
        """Wait until the owner has died. Returns False after the timeout, or if the box was closed meanwhile.

        A box that no process has claimed is waited for too. An exec of the owner counts as a death. Raises `ShimError`
        if the box was cut.
        """
        try:
            with self._in_use() as handle:
                result = core().taskd_box_await_death(handle, _milliseconds(timeout_s))
        except BoxClosedError:
            return False
        return result != -errno.ECANCELED and bool(check(result, f"black box {self.path} shows no death"))

    def command(self, command: BoxCommand, timeout_s: float = 1.0) -> int:
        """Send a command to the worker's core, and return its count.

        Raises `ShimError` if the owner is absent, dead or silent.
        """
        with self._in_use() as handle:
            result = core().taskd_box_command(handle, command.value, _milliseconds(timeout_s))
        return check(result, f"command {command.name} to black box {self.path} failed")

    def close(self) -> None:
        """End all waits, then unmap the memory. The file stays. Closing twice does nothing."""
        with self._idle:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            core().taskd_box_cancel(handle)
            self._idle.wait_for(lambda: self._users == 0)
        core().taskd_box_close(handle)

    def unlink(self) -> None:
        """Remove the file, if it is still there. A process that has it open keeps it."""
        self.path.unlink(missing_ok=True)
