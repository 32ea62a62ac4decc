"""Cgroups for a fault: one that is frozen, one with little memory. They have version 2 if possible, else 1.

Rules:

1. A cgroup lies at the root of its hierarchy and is removed at the end. Its processes are killed first.
2. If none can be made, `CgroupUnavailableError` gives the reason.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_TIMEOUT_S = 5.0


class CgroupUnavailableError(Exception):
    """This machine, or this user, has no such cgroup."""


def _second_version() -> Path | None:
    return next((path for path in (ROOT, ROOT / "unified") if (path / "cgroup.controllers").exists()), None)


@contextmanager
def frozen(name: str) -> Iterator[Path]:
    """Yield a frozen cgroup of version 2: the file through which a pid enters it."""
    second = _second_version()
    if second is None:
        raise CgroupUnavailableError(f"no cgroups of version 2 below {ROOT}")
    with _made(second / name) as path:
        (path / "cgroup.freeze").write_text("1")
        yield path / "cgroup.procs"


@contextmanager
def frozen_by_first(name: str) -> Iterator[Path]:
    """Yield a frozen cgroup of version 1, where even SIGKILL has to wait."""
    with _made(ROOT / "freezer" / name) as path:
        (path / "freezer.state").write_text("FROZEN")
        yield path / "cgroup.procs"


@contextmanager
def slowed(name: str, share: float) -> Iterator[Path]:
    """Yield a cgroup with this share of one CPU: the file through which a pid enters it, with its later children."""
    period_us = 100_000
    second = _second_version()
    if second is not None and "cpu" in (second / "cgroup.subtree_control").read_text().split():
        with _made(second / name) as path:
            (path / "cpu.max").write_text(f"{round(share * period_us)} {period_us}")
            yield path / "cgroup.procs"
        return
    with _made(ROOT / "cpu" / name) as path:
        (path / "cpu.cfs_period_us").write_text(str(period_us))
        (path / "cpu.cfs_quota_us").write_text(str(round(share * period_us)))
        yield path / "cgroup.procs"


@contextmanager
def small(name: str, size_bytes: int) -> Iterator[Path]:
    """Yield a cgroup with this limit of memory: the file through which a pid enters it."""
    second = _second_version()
    if second is not None and "memory" in (second / "cgroup.subtree_control").read_text().split():
        with _made(second / name) as path:
            (path / "memory.max").write_text(str(size_bytes))
            yield path / "cgroup.procs"
        return
    with _made(ROOT / "memory" / name) as path:
        (path / "memory.limit_in_bytes").write_text(str(size_bytes))
        yield path / "cgroup.procs"


@contextmanager
def _made(path: Path) -> Iterator[Path]:
    try:
        path.mkdir()
    except OSError as error:
        raise CgroupUnavailableError(f"{path}: {error.strerror}; cgroups need root and a writable {ROOT}") from error
    try:
        yield path
    finally:
        _take_away(path)


def _take_away(path: Path) -> None:
    until_s = time.monotonic() + _TIMEOUT_S
    for name, text in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
        if (path / name).exists():
            (path / name).write_text(text)
    while path.exists():
        for pid in map(int, (path / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            path.rmdir()
        except OSError as error:
            if time.monotonic() > until_s:
                raise CgroupUnavailableError(f"{path} is not left by its processes: {error.strerror}") from error
            time.sleep(0.01)  # an ending process is not listed, but still there
