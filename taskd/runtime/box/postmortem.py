"""Traces of a process's end in its black box: the fatal signal, who sent a SIGTERM, the exception, the exit status.

Rules:

1. Each part is whole or None. A part that was being written when the process died is None.
2. SIGKILL and the kernel's OOM killer leave nothing here; wait status and cgroup counters show those.
3. Addresses are those that addr2line takes, relative to the library. Libraries loaded in the last 200 ms may be
   unknown.
"""

import signal
from dataclasses import dataclass
from typing import Any

from taskd.runtime.box.shim import core, interface, told


@dataclass(frozen=True, slots=True)
class BoxSender:
    """The process that sent a signal, as it was then."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a native backtrace. `module` is the file name of the library, "" if it is not known."""

    address: int
    module: str
    offset: int

    def __str__(self) -> str:
        return f"{self.module}+0x{self.offset:x}" if self.module else f"0x{self.address:x}"


@dataclass(frozen=True, slots=True)
class BoxSignal:
    """A signal that ends a process unless the program handles it.

    Attributes:
        code: si_code of sigaction(2); 0 or less: sent by a process.
        sender: None if the kernel sent it; the process itself for abort().
        address: address of the fault; None if the signal was sent.
        pc: the instruction that was interrupted.
        frames: innermost first; empty if the process died before they were written.
        handled: the program's own handler has returned and the process went on.
    """

    signum: int
    code: int
    sender: BoxSender | None
    address: int | None
    pc: int
    tid: int
    thread: str
    at_ns: int
    frames: tuple[Frame, ...]
    handled: bool

    @property
    def name(self) -> str:
        """Name of the signal, such as `SIGSEGV`."""
        return signal.Signals(self.signum).name if self.signum in signal.valid_signals() else f"signal {self.signum}"


@dataclass(frozen=True, slots=True)
class Request:
    """The newest SIGTERM, whatever the program made of it. `count` is the number of all so far."""

    sender: BoxSender | None
    count: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class LastWords:
    """The exception that ended a thread, cut to 4 KiB. `where` is the last frame, as `file:line in function`."""

    kind: str
    where: str
    message: str
    tid: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Postmortem:
    """All traces of its process's end in a box."""

    exit_status: int | None
    exit_ns: int
    fault: BoxSignal | None
    request: Request | None
    last_words: LastWords | None


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")


def _sender(raw: Any) -> BoxSender | None:
    return BoxSender(raw.from_pid, raw.from_uid) if raw.from_pid >= 0 else None


def read_fault(handle: Any) -> BoxSignal | None:
    """Read the fatal signal from an open box; None if there is no whole one."""
    ffi, library = interface(), core()
    raw = ffi.new("struct taskd_fault *")
    if not told(library.taskd_box_fault(handle, raw)):
        return None
    frames = (raw.frame[number] for number in range(raw.frames))
    return BoxSignal(
        signum=raw.signum,
        code=raw.code,
        sender=_sender(raw),
        address=raw.address if raw.code > 0 else None,
        pc=raw.pc,
        tid=raw.tid,
        thread=_text(ffi.unpack(raw.thread, library.TASKD_THREAD_NAME_BYTES)),
        at_ns=raw.at_ns,
        frames=tuple(
            Frame(one.address, _text(ffi.unpack(one.module, library.TASKD_MODULE_BYTES)), one.offset) for one in frames
        ),
        handled=raw.state == library.TASKD_FAULT_HANDLED,
    )


def read_request(handle: Any) -> Request | None:
    """Read the newest SIGTERM from an open box; None if there is no whole one."""
    raw = interface().new("struct taskd_request *")
    if not told(core().taskd_box_request(handle, raw)):
        return None
    return Request(_sender(raw), raw.count, raw.at_ns)


def read_last_words(handle: Any) -> LastWords | None:
    """Read the exception that ended a thread from an open box; None if there is no whole one."""
    ffi = interface()
    raw = ffi.new("struct taskd_words *")
    if not told(core().taskd_box_words(handle, raw)):
        return None
    text = bytes(ffi.buffer(raw.text, raw.bytes)).decode(errors="replace")
    kind, _, rest = text.partition("\n")
    where, _, message = rest.partition("\n")
    return LastWords(kind, where, message, raw.tid, raw.at_ns)
