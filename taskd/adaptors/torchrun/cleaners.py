"""Processes of a dead rank's group that clean up behind it and get time for that.

Rules:

1. multiprocessing's resource tracker, that of loky, and `torch_shm_manager` remove the shared memory of a process after
   its death. So whoever kills a rank's group spares them for `CLEANUP_S`.
2. All other members of the group are killed at once.
3. A spared process is killed by its pidfd, because the group's number may have passed to another group. Without pidfds,
   or where /proc does not show the group, the whole group is killed at once.
4. Once torchrun ends its ranks (`release`), cleaners are no longer watched: those that still run end by themselves.
"""

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import PurePath
from signal import SIGKILL
from typing import Final

from taskd.adaptors.torchrun.children import is_subreaper, signal_group
from taskd.runtime.system.pidfd import ProcessHandle

CLEANUP_S: Final = 5.0
_TRACKERS: Final = (b"resource_tracker import main",)
_MANAGER: Final = "torch_shm_manager"
_MOST_PASSES: Final = 20
"""Passes over a group whose members fork while they are killed."""


class Cleaners:
    """Cleaners of one node's ranks whose time is not over."""

    def __init__(self) -> None:
        self._spared: dict[int, tuple[ProcessHandle, float]] = {}
        """Process and end of its time (monotonic seconds), by pid."""
        self._released = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Pids of the cleaners that still run."""
        self.look()
        return tuple(self._spared)

    def kill_group(self, leader: int) -> None:
        """Kill the group that `leader` leads, or `leader` alone if it leads none. It must not be reaped yet."""
        members = _members(leader)
        spared = {pid for pid in members if pid != leader and _is_cleaner(pid)}
        if not all(self._spare(pid) for pid in spared):
            spared = set()
        if not spared:
            signal_group(leader, SIGKILL)
            return
        killed = set[int]()
        for _ in range(_MOST_PASSES):
            rest = [pid for pid in members if pid not in spared | killed]
            if not rest:
                return
            for pid in rest:
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
            killed.update(rest)
            members = _members(leader)
        signal_group(leader, SIGKILL)

    def look(self) -> None:
        """Forget cleaners that have ended, and kill those whose time is over."""
        for pid, (process, until_s) in list(self._spared.items()):
            if not process.runs():
                process.close()
                del self._spared[pid]
            elif time.monotonic() >= until_s:
                process.kill(SIGKILL)

    def release(self) -> None:
        """Stop watching the cleaners that still run and those that are spared from now on."""
        self._released = True
        for process, _ in self._spared.values():
            process.close()
        self._spared.clear()

    def _spare(self, pid: int) -> bool:
        if pid in self._spared or self._released:
            return True
        process = ProcessHandle(pid)
        if not process.is_held:
            return not process.runs()
        self._spared[pid] = process, time.monotonic() + CLEANUP_S
        return True


def _members(group: int) -> list[int]:
    """Return the processes of a group; its leader comes first.

    A scan of all of /proc takes 20 ms with thousands of processes. A subreaper needs no scan: the members that a dead
    leader leaves are its children.
    """
    found = dict.fromkeys(_all_members(group) if not is_subreaper() else (group,))
    queue = deque([group, *(pid for pid in _children(os.getpid()) if _group_of(pid) == group)])
    while queue:
        pid = queue.popleft()
        if pid != group and pid in found:
            continue
        if _group_of(pid) == group:
            found[pid] = None
        queue.extend(_children(pid))
    return list(found)


def _all_members(group: int) -> list[int]:
    return [pid for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()) if _group_of(pid) == group]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    if PurePath(os.fsdecode(words[0])).name == _MANAGER:
        return True
    return any(tracker in word for word in words for tracker in _TRACKERS)
