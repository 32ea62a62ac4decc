"""What a rank's data loader costs it, and how much it gives the rank to do: for whoever looks for slow ranks.

Rules:

1. It goes into the black box, as steps do: so long the main thread has waited for batches, and how large they were.
2. A batch is as large as its largest tensor has elements: padded tokens of a text, pixels of images. It is compared
   between ranks only, so that its unit does not matter.
3. What is fetched by another thread is not waited for by the training, and is not counted.
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
"""A batch is looked into so far, and at so many of its parts."""
END: Final = object()
"""What comes after the last batch."""


class Meter:
    """Watches the loaders of one training state; it tells nobody until it has a recorder."""

    def __init__(self) -> None:
        self.recorder: Recorder | NullRecorder | None = None

    def watch(self, iterator: Any) -> None:
        """Whatever this iterator of a torch data loader gives from now on is counted."""
        if not hasattr(iterator, "_next_data"):
            return
        kind: Any = type(iterator)
        iterator.__class__ = _watched(kind)
        iterator._taskd_meter = self

    def fetching(self, fetch: Callable[[], Any] | None) -> Steps:
        """Have it called, or the original, and put down how long that took and how large the result is.

        What has no more returns `END`: a StopIteration would come out of these steps as another error.
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
    """Elements of the largest tensor in a batch, by which its ranks are compared; 0 if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    if not deep or isinstance(batch, str | bytes):
        return 0
    if isinstance(batch, Mapping):
        batch = [*islice(batch.values(), _PARTS)]
    if isinstance(batch, Sequence):
        return max((size(part, deep - 1) for part in batch[:_PARTS]), default=0)
    return 0
