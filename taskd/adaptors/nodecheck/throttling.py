"""The causes that have kept this process from a CPU: a quota of its cgroup, or other processes. Never raises."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskd.runtime.system.cgroups import cgroup_directories

_ROOT: Final = Path("/sys/fs/cgroup")


def waited_s() -> float:
    """Return how long this thread was ready to run and did not, in its whole life; 0.0 if the kernel keeps no count."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Quotas:
    """The CPU quotas over this process, also those of the cgroups around its own."""

    def __init__(self) -> None:
        self._before = {directory: _stopped(directory) for directory in _directories()}

    def stopped_since(self) -> tuple[int, str]:
        """Return the highest number of periods in which a quota stopped a cgroup of this process, and that cgroup.

        The count starts when this object is made.
        """
        rises = [(_stopped(directory) - before, str(directory)) for directory, before in self._before.items()]
        return max(rises, default=(0, ""))


def _directories() -> Iterator[Path]:
    for directory in map(Path, cgroup_directories(os.getpid())):
        yield from (one for one in (directory, *directory.parents) if one.is_relative_to(_ROOT))


def _stopped(directory: Path) -> int:
    try:
        for line in (directory / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "nr_throttled":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
