"""The cgroups that a process lives in: whether they are frozen, what memory they allow, how often that was too little.

Rules:

1. Both versions of cgroups are read, also side by side. Nothing here raises: what cannot be read is None.
2. A container may show its processes paths of the host. Where such a path does not exist, the container's own top is
   meant.
3. The counter of kills is the cgroup's. That it has risen while a process lived there is what can be said of it.
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
"""Of version 2 where both are in use."""
_UNLIMITED_BYTES: Final = 1 << 62
_MOST_KNOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Directories. `memory` is the one that counts kills, `freezers` are those that can stop its processes."""

    memory: str | None = None
    freezers: tuple[str, ...] = ()
    outermost: bool = True
    """`memory` is the top of its hierarchy, as it is shown here."""


def cgroups(pid: int) -> Cgroups | None:
    """Where a process lives; None if that cannot be read."""
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
    """Where it lives, one directory for each hierarchy; none if that cannot be read."""
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
    """How often the OOM killer has struck there; None if that is not counted."""
    if memory is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        for line in (read(f"{memory}/{name}") or "").splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return None


def limit_bytes(memory: str | None) -> int | None:
    """The least memory that it, or a cgroup around it, allows; None if there is no limit."""
    limits = []
    while memory is not None and memory.startswith(f"{_ROOT}/"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = (read(f"{memory}/{name}") or "").strip()
            if text.isdecimal() and int(text) < _UNLIMITED_BYTES:
                limits.append(int(text))
        memory = os.path.dirname(memory)
    return min(limits, default=None)


def frozen(freezers: tuple[str, ...]) -> bool | None:
    """Whether one of them stops its processes; None if that cannot be read."""
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
    """Let the processes go on that the freezer cgroup (v1) of this one stops; it, if it did and that was allowed.

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
    """Counters of kills of the cgroups that processes of this node have been seen in."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def note(self, memory: str | None) -> Mapping[str, int]:
        """The counters as they are now, of this cgroup and of all that were seen before."""
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
        """A process was found there."""
        self._known.setdefault(memory, count)


class CgroupWatch:
    """The cgroups of one process, from its start on."""

    def __init__(self, pid: int, counters: Counters) -> None:
        self._pid = pid
        self._counters = counters
        self._text: str | None = None
        """What the kernel said of it last. While that stays the same, the directories do."""
        self._cgroups = Cgroups()
        self.look()
        self._before = counters.note(self._cgroups.memory)

    def look(self) -> None:
        """See where it lives now."""
        text = read(f"/proc/{self._pid}/cgroup")
        if text in (None, self._text):
            return
        self._text, now = text, _found(text)
        if now.outermost and self._cgroups.memory is not None:
            now = replace(now, memory=self._cgroups.memory)  # one that has ended is shown at the top, wherever it was
        self._cgroups = now

    def report(self, *, gone: bool) -> Cgroup | None:
        """What is known of them. One that is `gone` is found where it was last."""
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
