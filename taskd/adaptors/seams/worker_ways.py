"""What torch does in other ways in other versions inside a rank, and what of ours is for each.

Nothing here imports torch before it is called.
"""

from collections.abc import Callable, Iterable
from typing import Any


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


def listed_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """All keys of a store."""
    del known
    keys: Iterable[str] = store.list_keys()
    return keys


def known_keys(store: Any, known: Callable[[], Iterable[str]]) -> Iterable[str]:
    """The keys that may be there, by what is known of who set them."""
    del store
    return known()
