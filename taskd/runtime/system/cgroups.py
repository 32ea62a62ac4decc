"""The cgroups of a process: whether they are frozen, how much memory they allow, how often that was too little.

Rules:

1. Both versions of cgroups are read, also side by side. Nothing here raises: unreadable values are None.
2. A container may show its processes paths of the host. A path that does not exist stands for the container's own top.
3. The counter of kills belongs to the cgroup. It shows only that the count has risen while a process lived there.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from taskd.core.diagnosis.evidence import Cgroup
from taskd.runtime.system.processes import read

_ROOT: Final = "/sys/fs/cgroup"
_UNIFIED: Final = f"{_ROOT}/unified"
"""Directory of version 2 if both versions are in use."""
_UNLIMITED_BYTES: Final = 1 << 62
_MOST_KNOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Directories of a process's cgroups. `memory` counts kills; `freezers` can stop its processes."""

    memory: str | None = None
    freezers: tuple[str, ...] = ()
    outermost: bool = True
    """True if `memory` is the top of its hierarchy, as it is shown here."""


def cgroups(pid: int) -> Cgroups | None:
    """Return the cgroups of a process; None if they cannot be read."""
    text = read(f"/proc/{pid}/cgroup")
    return None if text is None else _found(text)


def _found(text: str) -> Cgroups:
    memory, outermost, freezers = None, True, []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = controllers.split(",")
        if "memory" in names:
            memory, outermost = _directory(f"{_ROOT}/{controllers}", path)
        if "freezer" in names:
            freezers.append(_directory(f"{_ROOT}/{controllers}", path)[0])
        if not controllers:
            unified, top = _directory(_UNIFIED if os.path.isdir(_UNIFIED) else _ROOT, path)
            freezers.append(unified)
            if os.path.exists(f"{unified}/memory.events"):
                memory, outermost = unified, top
    return Cgroups(memory, tuple(freezers), outermost)


def cgroup_directories(pid: int) -> list[str]:
    """Return a process's cgroup directories, one for each hierarchy; none if they cannot be read."""
    found = []
    for line in (read(f"/proc/{pid}/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        unified = _UNIFIED if os.path.isdir(_UNIFIED) else _ROOT
        top = f"{_ROOT}/{controllers.removeprefix('name=')}" if controllers else unified
        found.append(_directory(top, path)[0])
    return found


def _directory(top: str, path: str) -> tuple[str, bool]:
    inside = f"{top}/{path.strip('/')}".rstrip("/")
    return (inside, inside == top) if os.path.isdir(inside) else (top, True)


def oom_kills(memory: str | None) -> int | None:
    """Return how often the OOM killer has struck in a cgroup; None if that is not counted."""
    if memory is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        for line in (read(f"{memory}/{name}") or "").splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return None


def limit_bytes(memory: str | None) -> int | None:
    """Return the least memory in bytes that a cgroup, or one around it, allows; None if there is no limit."""
    limits = []
    while memory is not None and memory.startswith(f"{_ROOT}/"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = (read(f"{memory}/{name}") or "").strip()
            if text.isdecimal() and int(text) < _UNLIMITED_BYTES:
                limits.append(int(text))
        memory = os.path.dirname(memory)
    return min(limits, default=None)


def frozen(freezers: tuple[str, ...]) -> bool | None:
    """Return whether one of these cgroups stops its processes; None if that cannot be read."""
    states = []
    for directory in freezers:
        state = read(f"{directory}/freezer.state")
        if state is not None:
            states.append(state.strip() in ("FROZEN", "FREEZING"))
        events = read(f"{directory}/cgroup.events")
        if events is not None:
            states.append("frozen 1" in events.splitlines())
    return any(states) if states else None


def thaw(pid: int) -> str | None:
    """Thaw the freezer cgroup (v1) of a process. Returns it if it was frozen and that was allowed.

    With version 1 even SIGKILL waits until then.
    """
    for directory in (cgroups(pid) or Cgroups()).freezers:
        state = f"{directory}/freezer.state"
        with suppress(OSError):
            if (read(state) or "THAWED").strip() != "THAWED":
                with open(state, "w") as file:
                    file.write("THAWED")
                return directory
    return None


class Counters:
    """Counters of kills of the cgroups in which processes of this node have been found."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def note(self, memory: str | None) -> Mapping[str, int]:
        """Return the present counters of this cgroup and of all that were recorded before."""
        for directory in [*self._known, *([memory] if memory is not None else [])]:
            count = oom_kills(directory)
            if count is not None:
                self._known[directory] = count
            else:
                self._known.pop(directory, None)  # it has been removed
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return dict(self._known)

    def see(self, memory: str, count: int) -> None:
        """Record the counter of a cgroup in which a process was found."""
        self._known.setdefault(memory, count)


class CgroupWatch:
    """The cgroups of one process, from its start on."""

    def __init__(self, pid: int, counters: Counters) -> None:
        self._pid = pid
        self._counters = counters
        self._text: str | None = None
        """Newest text of the kernel about them. While it stays the same, the directories do."""
        self._cgroups = Cgroups()
        self.look()
        self._before = counters.note(self._cgroups.memory)

    def look(self) -> None:
        """Read the process's present cgroups."""
        text = read(f"/proc/{self._pid}/cgroup")
        if text in (None, self._text):
            return
        self._text, now = text, _found(text)
        if now.outermost and self._cgroups.memory is not None:
            now = replace(now, memory=self._cgroups.memory)  # an ended one is shown at the top, wherever it was
        self._cgroups = now

    def report(self, *, gone: bool) -> Cgroup | None:
        """Return the facts about the cgroups. For a process that is `gone`, its last ones count."""
        if not gone:
            self.look()
        memory = self._cgroups.memory
        count = oom_kills(memory)
        if memory is None and not self._cgroups.freezers:
            return None
        if memory is not None and count is not None:
            self._counters.see(memory, count)
        kills = None if count is None or memory is None else max(0, count - self._before.get(memory, 0))
        return Cgroup(kills, None if gone else frozen(self._cgroups.freezers), limit_bytes(memory))
