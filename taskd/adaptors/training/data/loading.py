"""Cost of a rank's data loader, and the size of the rank's work, for the detection of slow ranks.

Rules:

1. The black box records both, as it records steps: how long the main thread has waited for batches, and their sizes.
2. The size of a batch is the number of elements in its largest tensor: padded tokens of a text, pixels of images. Sizes
   are compared between ranks only, so their unit does not matter.
3. The training does not wait for a batch that another thread fetches: it is not counted.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final

import torch

from taskd.adaptors.training.data.variants import variant
from taskd.runtime.box.recorder import NullRecorder, Recorder
from taskd.runtime.worker.frameless import ORIGINAL, Call, Steps, around
from taskd.runtime.worker.stacks import training_thread

_DEEP, _PARTS = 3, 16
"""Levels of nesting, and parts of each level, that are inspected in a batch."""
END: Final = object()
"""Result of a request behind the last batch."""


class Meter:
    """Watch over the loaders of one training state. It records nothing until it has a recorder."""

    def __init__(self) -> None:
        self.recorder: Recorder | NullRecorder | None = None

    def watch(self, iterator: Any) -> None:
        """Count the batches that this iterator of a torch data loader gives from now on."""
        if not hasattr(iterator, "_next_data"):
            return
        kind: Any = type(iterator)
        iterator.__class__ = _watched(kind)
        iterator._taskd_meter = self

    def fetching(self, fetch: Callable[[], Any] | None) -> Steps:
        """Call `fetch`, or the original if it is None, and record the duration and the size of the result.

        Behind the last batch `fetch` must return `END`: a StopIteration would come out of these steps as another error.
        """
        call: Call | None = ORIGINAL if fetch is None else (fetch, (), {})
        recorder = self.recorder
        if recorder is None or threading.get_ident() != training_thread():
            return (yield call)
        recorder.await_data()
        work = 0
        try:
            batch = yield call
            work = size(batch)
        finally:
            recorder.got_data(work)
        return batch


@cache
def _watched(kind: Any) -> Any:
    def metered(self: Any) -> Steps:
        steps: Steps = self._taskd_meter.fetching(None)
        return steps

    return variant(kind, {"_next_data": around(kind._next_data, metered)})


def size(batch: Any, deep: int = _DEEP) -> int:
    """Return the elements of a batch's largest tensor, by which ranks are compared; 0 if it has no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    if not deep or isinstance(batch, str | bytes):
        return 0
    if isinstance(batch, Mapping):
        batch = [*islice(batch.values(), _PARTS)]
    if isinstance(batch, Sequence):
        return max((size(part, deep - 1) for part in batch[:_PARTS]), default=0)
    return 0
