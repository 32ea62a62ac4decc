"""Folders in which agents keep their ranks' files: shared memory, or the temporary folder if that is unfit."""

import os
import tempfile
from pathlib import Path
from typing import Final

from taskd.config.rundir import SHORT, fits
from taskd.core.requirements import unfit_shared_memory

SHARED_MEMORY: Final = Path("/dev/shm")


def free_shared_memory() -> tuple[int, str]:
    """Return the bytes that are free in shared memory, and why the files of a node's ranks cannot lie there, or ""."""
    try:
        shared = os.statvfs(SHARED_MEMORY)
        writable = os.access(SHARED_MEMORY, os.W_OK)
    except OSError as error:
        return 0, f"found none ({error.strerror}); mount it: a tmpfs of 64 MB or more"
    free_bytes = shared.f_bavail * shared.f_frsize
    return free_bytes, unfit_shared_memory(free_bytes, shared.f_favail, writable=writable)


def temporary_folder() -> Path:
    """Return the temporary folder, or `SHORT` if paths below it are too long for sockets."""
    usual = Path(tempfile.gettempdir())
    return usual if fits(usual) else SHORT


def parents() -> list[Path]:
    """Return all folders in which an agent of this machine may have made that of its ranks."""
    return list(dict.fromkeys((SHARED_MEMORY, temporary_folder())))
