"""The directory for sockets and records: where it is, not what is in it (nothing is created here)."""

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from taskd.config import settings
from taskd.config.reading import Source

MAX_RUN_DIR_BYTES: Final = 60
"""A Unix socket's path has at most 107 bytes; this leaves 47 for what the agent puts below."""


def job_dir(directory: Path, job_id: str) -> Path:
    """Where the records of one job are, below the run directory."""
    return directory / re.sub(r"[^\w.-]", "_", job_id)


def run_dir(source: Source) -> Path:
    """The run directory. Raises `ConfigError` if it is relative or too long for a socket below it."""
    given = source.path(settings.RUN_DIR)
    if given is None:
        return Path(tempfile.gettempdir()) / f"taskd-{os.getuid()}"
    if len(os.fsencode(given)) > MAX_RUN_DIR_BYTES:
        raise source.refuse(settings.RUN_DIR, str(given), f"a path of at most {MAX_RUN_DIR_BYTES} bytes")
    return given
