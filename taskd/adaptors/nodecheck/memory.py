"""The speed at which the device's memory is copied, and the comparison of the copy.

The probe of computing measures delays of the process on its CPU; this one does not. Of some copies the fastest counts,
and on a CPU the time is that of the thread.
"""

import time
from typing import Final

import torch

from taskd.adaptors.nodecheck.devices import Device
from taskd.errors import ProbeError

_CPU_BYTES: Final = 32 << 20
_DEVICE_BYTES: Final = 1 << 30
_WORD_BYTES: Final = 4
_COPIES: Final = 5
_BUDGET_S: Final = 0.1


def memory(device: Device) -> float:
    """Return the rate of copying in 10**9 bytes a second. Raise `ProbeError` if a copy differs."""
    size_bytes = _CPU_BYTES if device.kind == "cpu" else _DEVICE_BYTES
    source = torch.arange(size_bytes // _WORD_BYTES, dtype=torch.int32, device=device.torch)
    source.mul_(-1640531527)  # odd, so every word is another one
    copy = torch.zeros_like(source)
    device.synchronize()
    clock, times_s = (time.thread_time if device.kind == "cpu" else time.perf_counter), list[float]()
    while not times_s or (len(times_s) < _COPIES and sum(times_s) < _BUDGET_S):
        start_s = clock()
        copy.copy_(source)
        device.synchronize()
        times_s.append(clock() - start_s)
        if not torch.equal(copy, source):
            wrong = int((copy != source).sum())
            raise ProbeError(
                f"the memory of {device.torch} is faulty: {wrong} of {source.numel()} words differ after a copy; take "
                "the device out of service"
            )
        copy.bitwise_not_()  # so a word that the next copy fails to write shows
    return size_bytes / max(min(times_s), 1e-9) / 1e9
