"""What is remembered of each group that the script made, and how two ranks see that they remember the same."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.handle import GroupHandle
from taskd.errors import RefusedError


@dataclass
class GroupCall:
    """The arguments with which torch made one process group. `ranks`, of the job, is empty for the default group."""

    size: int
    ranks: tuple[int, ...]
    backend: str
    name: str
    options: Any
    timeout: timedelta
    tag: str | None
    device: Any
    desc: str | None
    more: dict[str, Any] = field(default_factory=dict)
    """What newer versions of torch take beside these; handed on as it is."""
    handle: GroupHandle | None = field(default=None, repr=False)  # None for the default group and for non-members

    @property
    def is_default(self) -> bool:
        """Tell whether this is the group of all ranks that `init_process_group` makes."""
        return not self.ranks


def fingerprint(calls: list[GroupCall], section: int) -> int:
    """Return a positive 63-bit number, equal on ranks with the same groups in the same resilient function."""
    text = f"{section}\n" + "\n".join(f"{call.name} {call.ranks} {call.backend} {call.tag}" for call in calls)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def strangers(calls: list[GroupCall], names: Iterable[str]) -> str:
    """Which groups, of those with `names`, cannot be made again, "" if all can."""
    for call in calls:
        asked = {name: value for name, value in call.more.items() if value}
        if asked:  # enable_reconfigure, say: such a group has no peers until the script forms it
            return f"the group {call.name} was made with {asked}, which only the script can do again"
    known = {call.name for call in calls}
    strange = [name for name in names if name not in known]
    if not strange:
        return ""
    return f"the groups {strange} were made by split_group or shrink_group, or of a store of the script's own"


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
