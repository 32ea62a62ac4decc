"""Points of a script at which a rank waits for the test, or fails by the test's plan.

A plan is a dict: `folder`, and `points`, each with `name`, `rank`, `at` (the name of a place, or a step and a place)
and `do`: "hold" (the default), "raise", "break". A point is met once by each job, or each time with `"always": true`.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = json.loads(sys.argv[1])
FOLDER = Path(PLAN["folder"])
LIMIT_S = 120.0


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def reach(*place: object) -> None:
    """Meet the points of this place."""
    for point in PLAN["points"]:
        if point["rank"] == rank() and point["at"] == list(place) and _is_first(point):
            _ACTIONS[point.get("do", "hold")](point["name"])


def note(name: str, text: str) -> None:
    """Write a file atomically."""
    unfinished = FOLDER / f".{name}.{os.getpid()}"
    unfinished.write_text(text)
    unfinished.rename(FOLDER / name)


def _is_first(point: dict[str, Any]) -> bool:
    if point.get("always"):
        return True
    try:
        (FOLDER / f"met-{point['name']}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hold(name: str) -> None:
    """Report to the test that this process is here, and wait for its release."""
    note(f"held-{name}", str(os.getpid()))
    end_s = time.monotonic() + LIMIT_S
    while not (FOLDER / f"go-{name}").exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"nobody let this process go on from {name}")
        time.sleep(0.01)


def fail(name: str) -> None:
    raise ValueError(f"the plan says so: {name}")


def break_gloo(_name: str) -> None:
    """Cut every TCP connection of this process to another rank, as a failing network does."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as link:
            if link.family in (socket.AF_INET, socket.AF_INET6):
                ports = link.getsockname()[1], link.getpeername()[1]
                if int(os.environ.get("MASTER_PORT", "0")) not in ports:
                    link.shutdown(socket.SHUT_RDWR)


_ACTIONS = {"hold": hold, "raise": fail, "break": break_gloo}
