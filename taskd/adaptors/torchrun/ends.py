"""The end of a job on a node that is not why it ends: torchrun fails there too, and says the job's reason.

Rules:

1. A rank that has failed by itself is torch's own business: its report names it, and nothing here applies.
2. Otherwise every rank that was ended is reported with the job's reason; if all had ended well, all are.
3. The reason goes into the rank's error file, from which torch takes it for its summary, its events and torchrun's own
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
    """The reason as every node says it."""
    return f"the job ends here: {reason}"


def report(local_rank: LocalRank, pid: int, exitcode: int, error_file: str, reason: str) -> ProcessFailure:
    """torch's report of a rank that has not failed by itself."""
    text = tell(reason)
    message = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
    try:
        with Path(error_file).open("x") as file:
            json.dump({"message": message}, file)
    except OSError:  # it is there already, or there is no place for it
        pass
    failure = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exitcode, error_file=error_file)
    if failure.error_file != error_file:
        failure.message = text
    return failure


class LeavableStore:
    """What torch's exit barrier uses of a store; its wait ends early when `left` is true."""

    def __init__(self, store: Any, left: Callable[[], bool]) -> None:
        self._store = store
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str]) -> None:
        """Wait until the keys are there, or nobody serves them any more. Raises `DistStoreError` after the timeout.

        It looks again and again, for torch complains of every wait that ends by its own timeout.
        """
        until_s = time.monotonic() + self._store.timeout.total_seconds()
        while not (self._left() or self._have_come(keys)):
            if time.monotonic() > until_s:
                raise DistStoreError(f"not within {self._store.timeout}: {', '.join(keys)}")
            time.sleep(_LOOK_S)

    def _have_come(self, keys: list[str]) -> bool:
        try:
            return bool(self._store.check(keys))
        except DistNetworkError:  # whoever serves the store leaves it after the last one has come
            return True
