"""What torch does in other ways in other versions inside a rank, and what of ours is for each.

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
    """A backend that pretends, which only torch itself may construct."""
    from torch._C import _distributed_c10d as native

    return native.FakeProcessGroup._create_internal(rank, size)


def fake_constructed(rank: int, size: int) -> Any:
    """A backend that pretends, by its constructor."""
    from torch._C import _distributed_c10d as native

    return native.FakeProcessGroup(rank, size)


def abort_groups() -> None:
    """Abort every group and clear torch's tables. NCCL's communicators are aborted inside one group call."""
    from torch.distributed import distributed_c10d as c10d

    c10d._abort_process_group()


def abort_nccl_groups() -> None:
    """The same where torch does nothing, but for a line in the log, unless the default group is NCCL's."""
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
    """Have it, and what it calls, run as it is. Imports nothing of torch._dynamo, which takes a second."""
    from torch._C._dynamo import eval_frame

    skipped = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    eval_frame.set_code_exec_strategy(code, skipped)


def leave(_code: CodeType) -> None:
    """Change nothing."""


def resolve_by(named: Callable[[str], Any]) -> None:
    """Let device meshes ask `named` for a group first; what it does not know (None) torch finds."""
    from torch.distributed import device_mesh

    module: Any = device_mesh
    torchs = module._resolve_process_group
    if original_of(torchs) is None:

        def resolve(group_name: str) -> Steps:
            known = named(str(group_name))
            return (yield ORIGINAL) if known is None else known

        module._resolve_process_group = around(torchs, resolve)


def found_by_tag(named: Callable[[str], Any]) -> None:
    """Device meshes look into the tables of tags and ranks, where the handles stand."""
    del named


def listed_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """All keys of a store."""
    del known
    keys: Iterable[str] = store.list_keys()
    return keys


def known_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """The keys that may be there, by what is known of who set them."""
    del store
    return known()


class Timeouts(Protocol):
    """How long the forming of groups may take, of which each has a timeout of its own afterwards."""

    def making(self, own: timedelta, limit_s: float) -> timedelta:
        """The timeout to make a group with, whose own one is set when it is made."""

    def limited(self, limit_s: float, interrupt: Callable[[], object]) -> AbstractContextManager[None]:
        """Inside of this all groups are made. RuntimeError if that takes longer, from within or at the end."""


class SetTimeouts(Timeouts):
    """A group is made with the limit as its timeout."""

    @override
    def making(self, own: timedelta, limit_s: float) -> timedelta:
        return timedelta(seconds=limit_s)

    @override
    def limited(self, limit_s: float, interrupt: Callable[[], object]) -> AbstractContextManager[None]:
        return nullcontext()


class KeptTimeouts(Timeouts):
    """A group keeps the timeout that it is made with: a thread interrupts what takes too long."""

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
