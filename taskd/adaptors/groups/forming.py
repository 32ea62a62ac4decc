"""Forming a world again: how long that may take, and whether all ranks have formed the same.

Rules:

1. Forming has a limit of its own; afterwards the script's timeouts hold.
2. Where torch keeps to the timeout that a gloo group was made with, the group is made with the script's, and a thread
   interrupts what takes longer than the limit.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.calls import GroupCall, fingerprint
from taskd.adaptors.seams.worker import TIMEOUT
from taskd.errors import RefusedError
from taskd.runtime.hidden import HiddenThread


def timeout_of(call: GroupCall, limit_s: float) -> timedelta:
    """The timeout to make a group with, whose own one is set afterwards."""
    return timedelta(seconds=limit_s) if TIMEOUT.find().use else call.timeout


@contextmanager
def limited(limit_s: float, interrupt: Callable[[], object]) -> Iterator[None]:
    """Interrupt what is inside after `limit_s`, if groups do not do so themselves.

    Raises:
        RuntimeError: it was interrupted, and has not raised that.
    """
    if TIMEOUT.find().use:
        yield
        return
    left, lock = threading.Event(), threading.Lock()
    interrupted = False

    def watch() -> None:
        nonlocal interrupted
        if left.wait(limit_s):
            return
        with lock:
            if not left.is_set():
                interrupted = True
                interrupt()

    HiddenThread(watch, "taskd-forming")
    try:
        yield
    finally:
        with lock:
            left.set()
    if interrupted:
        raise RuntimeError(f"it took more than {limit_s:g} s")


def compare(calls: list[GroupCall], section: int) -> None:
    """Check over the new default group that all ranks made the same groups; it is its first collective.

    Raises:
        RefusedError: they did not, or are in another of the script's resilient functions than `section`.
    """
    device = c10d._get_object_coll_device()
    mine = torch.tensor([fingerprint(calls, section)], dtype=torch.int64, device=device)
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    different = [rank for rank, theirs in enumerate(everyone) if not torch.equal(theirs, everyone[0])]
    if different:
        raise RefusedError(
            f"ranks {different} made other process groups than rank 0, or are in another resilient function; "
            "expected the same calls of new_group on all ranks, before the only resilient function"
        )
