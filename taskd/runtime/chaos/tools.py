"""Commands of iproute2 that a scenario runs."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from taskd.errors import ChaosError

_TIMEOUT_S: Final = 10.0
_SYSTEM_PATH: Final = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"


def find_tool(name: str) -> str | None:
    """Return the path of a command, also outside a plain user's PATH; None if it is missing."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def run_tool(words: Sequence[str]) -> str:
    """Run a command and return its output. Raises `ChaosError` with its error message."""
    program = find_tool(words[0])
    if program is None:
        raise ChaosError(f"found no command {words[0]}, expected it: install the package iproute2")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the scenario
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChaosError(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        raise ChaosError(f"{' '.join(words)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout
