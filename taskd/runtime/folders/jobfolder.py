"""The folder of one job's records, which no other living job may share.

Rules:

1. `RUN_DIR/JOB_ID` belongs to the manager that holds the lock in it. Another living job of that name on this host gets
   `JOB_ID.2`, and so on. A later one, after the end of the first, continues in the first folder.
2. The lock file holds the manager's mark. Its agents identify the folder by that mark, wherever their file system shows
   it. An agent that finds no such folder, on another host, takes one of its own.
3. The kernel releases the lock with the process, however that ends.
4. Where a file system has no locks, folders are shared, as they are between hosts.
"""

import fcntl
import logging
import os
from contextlib import closing
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Final

from taskd.config.process import environment
from taskd.config.rundir import default_dir, job_dir
from taskd.runtime.folders.ownfolder import OwnFolder

logger = logging.getLogger(__name__)
LOCK: Final = "lock"
_MARK_BYTES: Final = 64


class JobFolder:
    """Folder that a job has got, made if need be, and its lock. Raises `OSError` if it cannot be made."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        first = job_dir(run_dir, job_id)
        for number in count(1):
            self.folder = open_folder(_numbered(first, number))
            try:
                self._lock = self.folder.open(LOCK, os.O_RDWR | os.O_CREAT)
            except OSError:
                self.folder.close()
                raise
            if locked(self._lock):
                break
            self.close()
        self.path = self.folder.path
        self.mark = token_hex(8)
        try:
            os.truncate(self._lock, 0)
            os.write(self._lock, self.mark.encode())
        except OSError:
            self.close()
            raise
        if self.path != first:
            logger.warning(
                "another job named %s, or another node of it, runs on this host, and %s is its folder: the records of "
                "this one are in %s; set TASKD_JOB_ID to tell jobs apart",
                job_id,
                first,
                self.path,
            )

    def close(self) -> None:
        """Release the folder: another job may have it."""
        os.close(self._lock)
        self.folder.close()


def open_folder(path: Path) -> OwnFolder:
    """Open a folder below the run directory, and make both if need be.

    The default run directory is this user's alone, as the folder is.
    """
    parent = path.parent
    if parent == default_dir(environment()):
        with closing(OwnFolder(parent)) as within:
            return OwnFolder(path, within)
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return OwnFolder(path)


def marked(run_dir: Path, job_id: str, mark: str) -> Path | None:
    """Return the folder of the manager with this mark; None if this file system does not show it."""
    first = job_dir(run_dir, job_id)
    for number in count(1):
        path = _numbered(first, number)
        try:
            with closing(OwnFolder(path, make=False)) as folder, open(folder.open(LOCK, os.O_RDONLY), "rb") as lock:
                found = lock.read(_MARK_BYTES)
        except OSError:
            return None
        if mark and found == mark.encode():
            return path
    return None


def _numbered(first: Path, number: int) -> Path:
    return first if number == 1 else first.with_name(f"{first.name}.{number}")


def locked(descriptor: int) -> bool:
    """Lock an open file. Returns whether this process has the lock now; True also where locks are not supported."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
