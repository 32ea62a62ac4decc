"""The directory for sockets and records: where it is, not what is in it (nothing is created here)."""

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
"""A Unix socket's path has at most 107 bytes; this leaves 47 for what the agent puts below."""
SHORT: Final = Path("/tmp")
"""Where it lies if the directory for temporary files is too deep. That it is this user's alone, `OwnFolder` sees to."""


def job_dir(directory: Path, job_id: str) -> Path:
    """Where the records of one job are, below the run directory."""
    return directory / re.sub(r"[^\w.-]", "_", job_id)


def run_dir(source: Source) -> Path:
    """The run directory. Raises `ConfigError` if it is relative or too long for a socket below it."""
    given = source.path(settings.RUN_DIR)
    if given is None:
        return default_dir(source.env)
    if not fits(given):
        raise source.refuse(settings.RUN_DIR, str(given), f"a path of at most {MAX_RUN_DIR_BYTES} bytes")
    return given


def default_dir(env: Mapping[str, str]) -> Path:
    """Where it is if nobody has said it: in the user's own directory for such things, or a shared one."""
    own = env.get("XDG_RUNTIME_DIR", "")
    if own and fits(Path(own) / "taskd") and _is_own(own):
        return Path(own) / "taskd"
    name = f"taskd-{os.getuid()}"
    shared = Path(env.get("TMPDIR") or tempfile.gettempdir()) / name
    return shared if fits(shared) else SHORT / name


def fits(directory: Path) -> bool:
    """Whether sockets can lie below it."""
    return len(os.fsencode(directory)) <= MAX_RUN_DIR_BYTES


def _is_own(path: str) -> bool:
    """Whether it is there, and is what the XDG base directory specification wants it to be."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
