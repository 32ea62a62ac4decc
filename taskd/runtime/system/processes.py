"""Facts in /proc about this node's processes: what they do, what they have used, and whose children they are.

Rules:

1. Nothing here raises: facts that cannot be read, of a gone process or of another user's, are None or empty.
2. A process is identified by its number and its start time. One with a dead one's number is another process.
3. Durations and amounts need two looks. `ProcessWatch` keeps the result of the last one.
"""

import ctypes
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import inf
from time import monotonic
from typing import Any, Final

from taskd.core.diagnosis.evidence import Child, Process, RunState

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_EXITING: Final = 4
"""PF_EXITING among the flags of /proc/PID/stat."""
_STATES: Final = {state.value: state for state in RunState} | {"x": RunState.DEAD}
_BRIEF_S: Final = 0.05
"""Least interval of two looks for the time used, in seconds: it is counted in steps of 10 ms."""
_LASTING_S: Final = 1.0
"""Seconds for which a state must have been seen before its duration is reported."""
_MOST_THREADS: Final = 32
_MOST_CHILDREN: Final = 64
_MOST_ANCESTORS: Final = 8
_INIT: Final = 1
_PR_SET_PDEATHSIG: Final = 1
_PR_GET_DUMPABLE: Final = 3
_PR_SET_NAME: Final = 15
_PR_GET_CHILD_SUBREAPER: Final = 37
_CHUNK_BYTES: Final = 4096
_SLACK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat that are used here. Times are in clock ticks."""

    state: RunState | None
    parent: int
    group: int
    session: int
    exiting: bool
    used_ticks: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """True if it runs, or could: the kernel is not taking it down."""
        return not self.exiting and self.state not in (RunState.ZOMBIE, RunState.DEAD)


def read(path: str) -> str | None:
    """Return the text of a small file of the kernel's; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = [os.read(fd, _CHUNK_BYTES)]
        while len(chunks[-1]) > _CHUNK_BYTES // 2:  # the kernel breaks between two lines or two words
            chunks.append(os.read(fd, _CHUNK_BYTES))
        return b"".join(chunks).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    """Return the fields of the process's main thread, or of the whole process where that is the same."""
    fields = (read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return Stat(
            state=_STATES.get(fields[0]),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            exiting=bool(int(fields[6]) & _EXITING),
            used_ticks=int(fields[11]) + int(fields[12]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def wchan(pid: int) -> str | None:
    """Return where in the kernel the main thread sleeps; "" or "0" if it does not or nobody may know."""
    text = read(f"/proc/{pid}/wchan")
    return None if text is None else text.strip()


def children(pid: int) -> list[int]:
    """Return the processes that it has started, or was given when their parent ended.

    Those of its main thread come first.
    """
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:_MOST_THREADS]
    except (OSError, ValueError):
        return []
    return [child for thread in threads for child in _children_of_thread(pid, thread)]


def _children_of_thread(pid: int, thread: int) -> list[int]:
    return [int(word) for word in (read(f"/proc/{pid}/task/{thread}/children") or "").split() if word.isdecimal()]


def name(pid: int, before_s: float | None = None) -> str:
    """Return the command of a process, if it lives and has started before this time of CLOCK_MONOTONIC; else ""."""
    known = stat(pid)
    if known is None or (before_s is not None and _age_s(known) < monotonic() - before_s - _SLACK_S):
        return ""
    command = (read(f"/proc/{pid}/comm") or "").strip()
    if command.startswith("python"):
        words = (read(f"/proc/{pid}/cmdline") or "").split("\0")[1:]
        script = next((word for word in words if word and not word.startswith("-")), "")
        command += f" {os.path.basename(script)}" if script.endswith(".py") else ""
    return command


def _age_s(known: Stat) -> float:
    try:
        up_s = float((read("/proc/uptime") or "").split()[0])
    except (IndexError, ValueError):
        return 0.0
    return up_s - known.start_ticks * _TICK_S


def own_age_s() -> float:
    """Return how long this process has run, in seconds; 0 if /proc does not show it."""
    known = stat(os.getpid())
    return 0.0 if known is None else _age_s(known)


def living(pids: Collection[int]) -> list[tuple[int, Stat]]:
    """Return the processes that live, with their state."""
    found = ((pid, stat(pid)) for pid in pids)
    return [(pid, known) for pid, known in found if known is not None and known.alive]


def orphans(parent: int, own: Collection[int], noted: Collection[tuple[int, int]]) -> list[tuple[int, Stat]]:
    """Return the living processes that an ended or ending process has left.

    These are its `own` children, if it still has any, and those that were `noted` earlier, each with its start time.
    Members of its session or group count too, if the kernel has given them to this process or to one of its ancestors.
    The kernel does so with every process that loses its parent.
    """
    starts = dict(noted)
    found = []
    for pid, known in living(dict.fromkeys([*own, *starts, *_adopted()])):
        descended = parent > 0 and pid != parent and parent in (known.session, known.group)  # 0: of another namespace
        if pid in own or descended or starts.get(pid) == known.start_ticks:
            found.append((pid, known))
    return found[:_MOST_CHILDREN]


def _adopted() -> Iterator[int]:
    """Yield the newest children of this process and, unless it is the reaper of orphans itself, of its ancestors.

    The kernel gives an orphan to the main thread of its reaper.
    """
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        yield from _children_of_thread(pid, pid)[-_MOST_CHILDREN:]
        known = stat(pid)
        if pid == _INIT or known is None or known.parent == 0 or (pid == os.getpid() and _reaps()):
            return
        pid = known.parent


def _reaps() -> bool:
    answer = ctypes.c_int(0)
    return _prctl()(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value != 0


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 if it has none or is gone."""
    known = stat(pid)
    return 0 if known is None else known.parent


def session_of(pid: int) -> int:
    """Return the leader of a process's session, 0 if the process is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Make the kernel signal this process when `parent` ends. Returns False if `parent` was gone before."""
    _prctl()(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def call_me(name: str) -> None:
    """Name the calling thread for tools, at most 15 bytes. The main thread's name is the process's."""
    _prctl()(_PR_SET_NAME, name.encode(), 0, 0, 0)


def is_dumpable() -> bool:
    """Return whether other processes of this user may inspect this one.

    They may not once its user or capabilities have changed.
    """
    return bool(_prctl()(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1)


@cache
def _prctl() -> Any:
    return ctypes.CDLL(None).prctl


@dataclass(slots=True)
class _Look:
    """Observation of a process and its time, and since when its main thread has been seen where it is."""

    known: Stat
    at_s: float
    turns: str
    """Number of times that the main thread has been given a processor."""
    since_s: float
    otherwise_s: float = -inf
    """Time of the last look that found it in another state, or before it had moved."""
    busy: float | None = None
    busy_s: float = 0.0
    """Time at which `busy` was counted last, up to `used_ticks`."""
    used_ticks: int = 0


class ProcessWatch:
    """Repeated observation of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._children: dict[int, int] = {}
        """Children that were seen, with their start times."""
        self._last: _Look | None = None
        self.look()

    def look(self) -> Stat | None:
        """Observe the process. Cheap: two files of /proc. Returns None if it has gone."""
        known, now_s = stat(self.pid), monotonic()
        last = self._last
        if known is None or (last is not None and last.known.start_ticks != known.start_ticks):
            return None
        turns = (read(f"/proc/{self.pid}/schedstat") or "").rpartition(" ")[2]
        look = self._last = _Look(known, now_s, turns, since_s=now_s, busy_s=now_s, used_ticks=known.used_ticks)
        if last is not None:
            if (last.known.state, last.turns) == (known.state, turns):
                look.since_s, look.otherwise_s = last.since_s, last.otherwise_s
            else:
                look.otherwise_s = last.at_s
            if now_s - last.busy_s < _BRIEF_S:
                look.busy, look.busy_s, look.used_ticks = last.busy, last.busy_s, last.used_ticks
            else:
                look.busy = (known.used_ticks - last.used_ticks) * _TICK_S / (now_s - last.busy_s)
        return known

    def report(self, *, ending: bool) -> Process:
        """Return all facts about the process. Living children of one that is `ending` are orphans."""
        known, last = self.look(), self._last
        if known is None or last is None:
            return Process(self.pid, orphans=self.left())
        falling = ending or not known.alive
        mine = () if falling else tuple(living(children(self.pid)[:_MOST_CHILDREN]))
        if not falling:
            self._children = {pid: its.start_ticks for pid, its in mine}
        return Process(
            pid=self.pid,
            state=known.state,
            wchan=wchan(self.pid),
            exiting=known.exiting,
            busy=last.busy,
            state_s=_state_s(last),
            children=_shown(mine),
            orphans=self.left() if falling else (),
        )

    def left(self) -> tuple[Child, ...]:
        """Return the processes that it has left behind, if it has ended or is about to."""
        known = stat(self.pid)
        its_own = self._last is not None and known is not None and known.start_ticks == self._last.known.start_ticks
        if known is not None and not its_own:
            return ()  # another process has its number, which is not given away while any of its group or session live
        return _shown(orphans(self.pid, children(self.pid), self._children.items()))


def _state_s(last: _Look) -> float | None:
    """Return the least duration of the present state; None if, by the looks so far, it may be long or short."""
    now_s = monotonic()
    lasted_s = now_s - last.since_s
    return lasted_s if lasted_s >= _LASTING_S or now_s - last.otherwise_s < _LASTING_S else None


def _shown(found: Iterable[tuple[int, Stat]]) -> tuple[Child, ...]:
    return tuple(Child(pid, known.state, wchan(pid)) for pid, known in found)
