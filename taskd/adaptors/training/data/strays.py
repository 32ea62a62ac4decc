"""Data loaders that a script trains from without having given them to its state: a warning names their line.

Rules:

1. Iterators that torch's loaders make are recorded between the entry into the resilient function and the first commit.
   If an iterator is in the middle of its pass at that commit, the script trains from it.
2. Afterwards torch's class is restored, and nothing is paid.
"""

import logging
import math
import sys
import weakref
from types import FrameType
from typing import Any

from torch.utils.data import dataloader

from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

_log = logging.getLogger(__name__)
_NOT_THE_SCRIPTS = ("torch", "torchdata", "taskd", "accelerate", "lightning", "pytorch_lightning", "tqdm")


class Strays:
    """Watch over loaders outside of the state, until `report` or `stop` is called."""

    def __init__(self) -> None:
        self._seen: list[tuple[weakref.ref[Any], str]] = []
        self._own: Any = None

    def watch(self) -> None:
        """Start to record iterators."""
        if self._own is not None:
            return
        own = self._own = vars(dataloader._BaseDataLoaderIter)["__init__"]
        seen = self._seen

        def noting(self: Any, loader: Any) -> Steps:
            yield ORIGINAL
            if not hasattr(loader, "_taskd_place") and not keeps_itself(loader):
                seen.append((weakref.ref(self), iterated_at()))

        dataloader._BaseDataLoaderIter.__init__ = around(own, noting)  # type: ignore[method-assign]

    def stop(self) -> None:
        """Restore torch's class."""
        if self._own is not None:
            dataloader._BaseDataLoaderIter.__init__ = self._own  # type: ignore[method-assign]
            self._own = None
        self._seen.clear()

    def report(self) -> None:
        """Warn of the loaders that the first committed step came from, and stop."""
        alive = [(iterator, line) for known, line in self._seen if (iterator := known()) is not None]
        lines = {line for iterator, line in alive if 0 < iterator._num_yielded < length_of(iterator)}
        self.stop()
        for line in sorted(lines):
            _log.warning(
                "the DataLoader iterated at %s is not a part of the TrainState: after a recovery it begins again, and "
                "draws another order if it shuffles by itself; pass it, TrainState(…, loader=loader), and skip "
                "nothing by hand",
                line,
            )


def keeps_itself(loader: Any) -> bool:
    """Return whether a loader has a state of its own: the TrainState has it by name, or the script restores it."""
    return callable(getattr(loader, "load_state_dict", None))


def length_of(iterator: Any) -> float:
    """Return the number of batches of an iterator's pass; infinity if it is not known.

    This may run a `__len__` of the script's, which may raise anything.
    """
    try:
        return len(iterator)
    except Exception:  # noqa: BLE001 - none of its errors may end a commit
        return math.inf


def iterated_at() -> str:
    """Return `file:line` of the script's loop. Call it from a body around an iterator's `__init__`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_SCRIPTS:
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
