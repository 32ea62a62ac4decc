"""Memory that the processes of a job may still use: the machine's, and the limits of cgroups."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from taskd.runtime.system.processes import read

_CGROUPS: Final = "/sys/fs/cgroup"
_UNLIMITED_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that a job may use. `limited`: a cgroup bounds it, not the machine alone.

    `cache_bytes` of the used bytes are files that the kernel drops when memory is needed.
    """

    limit_bytes: int
    used_bytes: int
    limited: bool
    cache_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """Bytes that are left."""
        return self.limit_bytes - self.used_bytes


def memory_of(directory: str | None) -> Memory:
    """Return the memory of a job with this memory cgroup: the bound, of it or of one around it, with the least left.

    Without such a bound, return the machine's memory.
    """
    total, free = _meminfo("MemTotal"), _meminfo("MemAvailable")
    machine = Memory(total, total - free, limited=False)
    return min(_bounds(directory), default=machine, key=lambda one: one.free_bytes)


def _bounds(directory: str | None) -> Iterator[Memory]:
    while directory is not None and directory.startswith(f"{_CGROUPS}/"):
        limit = _number(directory, "memory.max", "memory.limit_in_bytes")
        used = _number(directory, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
            yield Memory(limit, used, True, _forgettable(directory))
        directory = os.path.dirname(directory)


def _forgettable(directory: str) -> int:
    lines = (line.partition(" ") for line in (read(f"{directory}/memory.stat") or "").splitlines())
    stat = {name: int(number) for name, _, number in lines if number.isdecimal()}
    return stat.get("total_inactive_file", stat.get("inactive_file", 0))  # version 1 has both: of all below, and own


def _number(directory: str, *names: str) -> int | None:
    texts = ((read(f"{directory}/{name}") or "").strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _meminfo(name: str) -> int:
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
