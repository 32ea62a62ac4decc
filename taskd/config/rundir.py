"""Path of the directory for sockets and records. Nothing is created here."""

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from taskd.config import settings
from taskd.config.reading import Source

MAX_RUN_DIR_BYTES: Final = 60
"""Longest path of the run directory. A Unix socket's path has at most 107 bytes: 47 are left for the agent's names."""
SHORT: Final = Path("/tmp")
"""Parent of the run directory if the path of the directory for temporary files is too long.

`OwnFolder` ensures that the run directory belongs to this user alone.
"""


def job_dir(directory: Path, job_id: str) -> Path:
    """Return the directory of one job's records, below the run directory."""
    return directory / re.sub(r"[^\w.-]", "_", job_id)


def run_dir(source: Source) -> Path:
    """Return the run directory. Raises `ConfigError` if it is relative or too long for a socket below it."""
    given = source.path(settings.RUN_DIR)
    if given is None:
        return default_dir(source.env)
    if not fits(given):
        raise source.refuse(settings.RUN_DIR, str(given), f"a path of at most {MAX_RUN_DIR_BYTES} bytes")
    return given


def default_dir(env: Mapping[str, str]) -> Path:
    """Return the run directory without a setting: in `XDG_RUNTIME_DIR`, or in the directory for temporary files."""
    own = env.get("XDG_RUNTIME_DIR", "")
    if own and fits(Path(own) / "taskd") and _is_own(own):
        return Path(own) / "taskd"
    name = f"taskd-{os.getuid()}"
    shared = Path(env.get("TMPDIR") or tempfile.gettempdir()) / name
    return shared if fits(shared) else SHORT / name


def fits(directory: Path) -> bool:
    """Return whether the path is short enough for sockets below the directory."""
    return len(os.fsencode(directory)) <= MAX_RUN_DIR_BYTES


def _is_own(path: str) -> bool:
    """Return whether the directory exists, with the owner and mode that the XDG specification requires."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
