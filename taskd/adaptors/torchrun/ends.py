"""End of a job on a node that did not cause it: torchrun fails there too, and reports the job's reason.

Rules:

1. A rank that has failed by itself is torch's own business: torch's report names it, and nothing here applies.
2. Otherwise every rank that was ended is reported with the job's reason. If all had ended well, all are reported.
3. The reason goes into the rank's error file. torch takes it from there for its summary, its events and torchrun's own
   error file. A file that the rank itself has written stays as it is.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import ProcessFailure

from taskd.wire.kinds import LocalRank

_LOOK_S: Final = 0.02


def tell(reason: str) -> str:
    """Return the reason in the words that every node reports."""
    return f"the job ends here: {reason}"


def report(local_rank: LocalRank, pid: int, exitcode: int, error_file: str, reason: str) -> ProcessFailure:
    """Return torch's report of a rank that has not failed by itself, and write the reason to its error file."""
    text = tell(reason)
    message = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
    try:
        with Path(error_file).open("x") as file:
            json.dump({"message": message}, file)
    except OSError:  # the file exists already, or cannot be created
        pass
    failure = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exitcode, error_file=error_file)
    if failure.error_file != error_file:
        failure.message = text
    return failure


class LeavableStore:
    """Wrapper of the store for torch's exit barrier; its wait ends early when `left` is true."""

    def __init__(self, store: Any, left: Callable[[], bool]) -> None:
        self._store = store
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str]) -> None:
        """Wait until the keys exist, or their server has gone. Raises `DistStoreError` after the timeout.

        It polls, because torch complains about every wait that ends by its own timeout.
        """
        until_s = time.monotonic() + self._store.timeout.total_seconds()
        while not (self._left() or self._have_come(keys)):
            if time.monotonic() > until_s:
                raise DistStoreError(f"not within {self._store.timeout}: {', '.join(keys)}")
            time.sleep(_LOOK_S)

    def _have_come(self, keys: list[str]) -> bool:
        try:
            return bool(self._store.check(keys))
        except DistNetworkError:  # the server's owner leaves after the last node has come
            return True
