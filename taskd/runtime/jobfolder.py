"""The folder of one job's records, which no other living job may share.

Rules:

1. `RUN_DIR/JOB_ID` belongs to the job whose manager holds the lock in it. Another living one of that name on this
   host gets `JOB_ID.2`, and so on; one that comes later, when the first has ended, goes on in the first folder.
2. The kernel gives the lock back with the manager's process, however that ends.
3. Where a file system knows no locks, folders are shared, as they are between hosts.
"""

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from taskd.config.rundir import job_dir

logger = logging.getLogger(__name__)
LOCK: Final = "lock"
_MOST: Final = 999


class JobFolder:
    """The folder that a job has got, made if need be, and its lock. Raises `OSError` if it cannot be made."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        first = job_dir(run_dir, job_id)
        for number in range(1, _MOST):
            self.path = first if number == 1 else first.with_name(f"{first.name}.{number}")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locked(self._lock):
                break
            os.close(self._lock)
        if self.path != first:
            logger.warning(
                "another job named %s runs on this host, and %s is its folder: the records of this one are in %s; set "
                "TASKD_JOB_ID to tell them apart",
                job_id,
                first,
                self.path,
            )

    def close(self) -> None:
        """Another job may have it."""
        os.close(self._lock)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
