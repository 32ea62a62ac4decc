"""Things that torch does differently in different versions inside a rank, and our code for each.

Nothing here imports torch before it is called.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from types import CodeType
from typing import Any, Protocol

from typing_extensions import override

from taskd.runtime.system.hidden import HiddenThread
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, original_of


def fake_made_inside(rank: int, size: int) -> Any:
    """Return torch's fake backend, which only torch itself may construct."""
    from torch._C import _distributed_c10d as native

    return native.FakeProcessGroup._create_internal(rank, size)


def fake_constructed(rank: int, size: int) -> Any:
    """Return torch's fake backend, made by its constructor."""
    from torch._C import _distributed_c10d as native

    return native.FakeProcessGroup(rank, size)


def abort_groups() -> None:
    """Abort every group and clear torch's tables. NCCL's communicators are aborted inside one group call."""
    from torch.distributed import distributed_c10d as c10d

    c10d._abort_process_group()


def abort_nccl_groups() -> None:
    """Abort every group if the default group is NCCL's; for any other one torch would only log a line."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    world = c10d._get_default_group()
    try:
        backend: object = world._get_backend(torch.device("cuda"))
    except RuntimeError:
        backend = None
    if c10d.is_nccl_available() and isinstance(backend, c10d.ProcessGroupNCCL):
        c10d._abort_process_group(world)


def skip_by_strategy(code: CodeType) -> None:
    """Run this code, and the code that it calls, uncompiled. Imports nothing of torch._dynamo, which takes a second."""
    from torch._C._dynamo import eval_frame

    skipped = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    eval_frame.set_code_exec_strategy(code, skipped)


def leave(_code: CodeType) -> None:
    """Change nothing."""


def resolve_by(named: Callable[[str], Any]) -> None:
    """Make device meshes call `named` for a group first; torch finds the groups for which it returns None."""
    from torch.distributed import device_mesh

    module: Any = device_mesh
    torchs = module._resolve_process_group
    if original_of(torchs) is None:

        def resolve(group_name: str) -> Steps:
            known = named(str(group_name))
            return (yield ORIGINAL) if known is None else known

        module._resolve_process_group = around(torchs, resolve)


def found_by_tag(named: Callable[[str], Any]) -> None:
    """Change nothing: device meshes search the tables of tags and ranks, which have the handles."""
    del named


def listed_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """Return all keys of a store."""
    del known
    keys: Iterable[str] = store.list_keys()
    return keys


def known_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """Return the keys that may be in the store, by the caller's record of who set them."""
    del store
    return known()


class Timeouts(Protocol):
    """The limits on forming groups, each of which has a timeout of its own afterwards."""

    def making(self, own: timedelta, limit_s: float) -> timedelta:
        """Return the timeout to make a group with; the group's own one is set when it is made."""

    def limited(self, limit_s: float, interrupt: Callable[[], object]) -> AbstractContextManager[None]:
        """Limit the time in which all groups are made to `limit_s`.

        RuntimeError if it takes longer, from within or at the end.
        """


class SetTimeouts(Timeouts):
    """Timeouts of a torch whose groups are made with the limit as their timeout."""

    @override
    def making(self, own: timedelta, limit_s: float) -> timedelta:
        return timedelta(seconds=limit_s)

    @override
    def limited(self, limit_s: float, interrupt: Callable[[], object]) -> AbstractContextManager[None]:
        return nullcontext()


class KeptTimeouts(Timeouts):
    """Timeouts of a torch whose groups keep their first one: a thread interrupts when forming takes too long."""

    @override
    def making(self, own: timedelta, limit_s: float) -> timedelta:
        return own

    @override
    @contextmanager
    def limited(self, limit_s: float, interrupt: Callable[[], object]) -> Iterator[None]:
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
