"""Owners of child processes, and the processes' names."""

import os
import subprocess
import sys
import time

import pytest

from taskd.runtime.system import processes
from tests.runtime.watched import LIMIT_S


@pytest.mark.parametrize("pid", [0, 4_194_303])
def test_the_children_of_a_container_whose_session_began_outside_are_nobodys(pid: int) -> None:
    """Inside the container, their session and group read as 0."""
    look = f"from taskd.runtime.system.processes import orphans; print(orphans({pid}, [], []))"
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    program = ["sh", "-c", 'sleep 60 & "$0" -c "$1"; kill $!', sys.executable, look]
    done = subprocess.run([*namespace, *program], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if not done.stdout:
        pytest.skip(f"no namespace of processes: {done.stderr.strip()}")
    assert done.stdout == "[]\n"


def test_who_is_called_what() -> None:
    assert processes.name(os.getpid(), time.monotonic()).startswith("py")
    assert processes.name(os.getpid(), 0.0) == "", "it has started later: another process had that number then"
