"""How a process has ended, in words: its exit status, and what its black box and its cgroup know of it.

Rules:

1. The words begin with the status as torchrun has it. What follows is for people, and for telling faults apart.
2. Only what was seen is said. Who sent a SIGKILL the kernel tells nobody; that the OOM killer has struck in the
   process's cgroup since its start, its counter tells (cgroup v1: `memory.oom_control`, v2: `memory.events`).
"""

from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Protocol

from taskd.core.budget import EXIT_CODE
from taskd.errors import ShimError
from taskd.runtime.postmortem import Fault, Postmortem, Sender

_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY = _CGROUPS / "memory"
"""Of cgroup v1."""
_SHOWN_FRAMES = 6


class Box(Protocol):
    """A black box, as far as its process's end goes."""

    def postmortem(self) -> Postmortem:
        """What the process has left to be said of its end."""
        ...


class Endings:
    """The ends of one node's processes."""

    def __init__(self) -> None:
        self._oom_kills: dict[int, tuple[Path, int]] = {}

    def begin(self, pid: int) -> None:
        """A process has started."""
        cgroup = memory_cgroup(pid)
        count = oom_kills(cgroup)
        if cgroup is not None and count is not None:
            self._oom_kills[pid] = cgroup, count

    def describe(self, pid: int, status: int, box: Box | None, *, gone: bool) -> str:
        """How it has ended, or is ending; `status` is negative for a signal."""
        text = in_words(status)
        if status == -SIGKILL:
            text += self._oom(pid, gone=gone)
        elif status and box is not None:
            with suppress(ShimError):  # a box that is closed or damaged adds nothing
                text += _details(status, box.postmortem())
        if gone:
            self._oom_kills.pop(pid, None)
        return text

    def _oom(self, pid: int, *, gone: bool) -> str:
        now = None if gone else memory_cgroup(pid)  # of a process that is gone it is the root
        if now is not None and now != _MEMORY and now != self._oom_kills.get(pid, (None, 0))[0]:
            self._oom_kills[pid] = now, 0  # it was put there later
        cgroup, before = self._oom_kills.get(pid, (None, 0))
        count = (oom_kills(cgroup) or 0) - before
        if count <= 0:
            return ""
        return f", as the OOM killer does: it has struck {count} times in {cgroup} since the process came there"


def in_words(status: int) -> str:
    """An exit status as torchrun reports it."""
    if status >= 0:
        return f"{EXIT_CODE} {status}"
    try:
        return f"signal {-status} ({Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def memory_cgroup(pid: int) -> Path | None:
    """The directory of a process's memory cgroup; None if there is none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            return _MEMORY / path.lstrip("/")
        if not controllers and (_CGROUPS / path.lstrip("/") / "memory.events").exists():
            return _CGROUPS / path.lstrip("/")
    return None


def oom_kills(cgroup: Path | None) -> int | None:
    """How often the OOM killer has struck there; None if that is not counted."""
    if cgroup is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError):
            fields = dict(entry.split(None, 1) for entry in (cgroup / name).read_text().splitlines())
            if "oom_kill" in fields:
                return int(fields["oom_kill"])
    return None


def _details(status: int, said: Postmortem) -> str:
    if status == -SIGTERM and said.request is not None:
        return _sent(said.request.sender)
    if said.fault is not None and said.fault.signum == -status:
        return _fault(said.fault)
    if status > 0 and said.last_words is not None and said.last_words.where:
        return f" at {said.last_words.where}"
    return ""


def _fault(fault: Fault) -> str:
    where = " < ".join(map(str, fault.frames[:_SHOWN_FRAMES]))
    said = f" in thread {fault.thread}" + (f" at {where}" if where else "")
    if fault.address is not None:
        said += f", for address 0x{fault.address:x}"
    return said + _sent(fault.sender)


def _sent(sender: Sender | None) -> str:
    return "" if sender is None else f", sent by process {sender.pid} of user {sender.uid}"
