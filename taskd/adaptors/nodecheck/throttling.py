"""What has kept this process from a CPU: a quota of its cgroup, or others that wanted the same CPU. Never raises."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskd.runtime.system.cgroups import cgroup_directories

_ROOT: Final = Path("/sys/fs/cgroup")


def waited_s() -> float:
    """For how long this thread was ready to run and did not: its whole life. 0.0 if the kernel does not count it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Quotas:
    """The CPU quotas over this process, also those of the cgroups around its own."""

    def __init__(self) -> None:
        self._before = {directory: _stopped(directory) for directory in _directories()}

    def stopped_since(self) -> tuple[int, str]:
        """In how many periods a quota has stopped this process's cgroup since this was made; which one most."""
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
