"""Environments for the processes of the shim's tests, and ways to wait for them."""

import os
import select
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from taskd.runtime.box.blackbox import library_path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
GATE = library_path("libtaskd.so")
CORE = library_path()


def plain() -> dict[str, str | None]:
    """Return changes that leave nothing of taskd in the environment but the path to its package."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.startswith("TASKD_")}
    return ours | {"LD_PRELOAD": None, "PYTHONPATH": str(REPOSITORY)}


def armed(box: Path, gate: Path = GATE, **more: str) -> dict[str, str | None]:
    """Return the environment of a worker with this box."""
    ours = {"LD_PRELOAD": str(gate), "TASKD_PROCESS_ENABLE": "on", "TASKD_BLACKBOX": str(box), "RANK": "3"}
    return plain() | ours | more


def until(condition: Callable[[], object], what: str, timeout_s: float = 20) -> None:
    """Poll until `condition` holds. Fail with `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.002)


@contextmanager
def end_of(pid: int):
    """Yield a function that waits for the end of this process, whoever its parent is, and returns whether it came."""
    handle = os.pidfd_open(pid)
    try:
        yield lambda timeout_s: bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)
