"""The record of each group that the script made, and the check that two ranks have the same record."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.gathering import gather, number_of
from taskd.adaptors.groups.handle import GroupHandle
from taskd.adaptors.groups.members import Members
from taskd.adaptors.seams.worker import SPLIT
from taskd.errors import RefusedError
from taskd.wire.kinds import JobRank


@dataclass
class GroupCall:
    """The arguments with which torch made one process group. `ranks`, of the job, is empty for the default group."""

    size: int
    ranks: tuple[JobRank, ...]
    backend: str
    name: str
    options: Any
    timeout: timedelta
    tag: str | None
    device: Any
    desc: str | None
    more: dict[str, Any] = field(default_factory=dict)
    """Arguments that newer versions of torch take besides these; passed on unchanged."""
    handle: GroupHandle | None = field(default=None, repr=False)  # None for non-members

    @property
    def is_default(self) -> bool:
        """Return whether this is the group of all ranks that `init_process_group` makes."""
        return not self.ranks


def fingerprint(call: GroupCall) -> int:
    """Return a positive 63-bit number, equal on ranks that have made this group alike."""
    return number_of([call.name, call.ranks, call.backend, call.tag])


def strangers(calls: list[GroupCall], names: Iterable[str]) -> str:
    """Return, among the groups with these `names`, the ones that cannot be made again, in words; "" if all can."""
    for call in calls:
        asked = {name: value for name, value in call.more.items() if value}
        if asked:  # for example `enable_reconfigure`: such a group has no peers until the script forms it
            return f"the group {call.name} was made with {asked}, which only the script can do again"
    known = {call.name for call in calls}
    strange = [name for name in names if name not in known]
    if not strange:
        return ""
    split = "" if SPLIT.find().use else "split_group of this torch, "
    return f"the groups {strange} were made by {split}shrink_group, or of a store of the script's own"


def compare(calls: list[GroupCall], section: int, members: Members, more: Sequence[int] = ()) -> list[list[int]]:
    """Check over the new default group that the members of each group have made it alike.

    This is the first use of the new default group. Groups without this rank are not compared: with
    `use_local_synchronization` only their members have a record of them. `more` are numbers that travel with the check,
    equally many on each rank. Returns those of every rank.

    Raises:
        RefusedError: the members' records differ, or a rank is in another resilient function of the script than
            `section`.
    """
    table = gather([number_of([section, *map(fingerprint, calls)]), *more])
    theirs = [row[1:] for row in table]
    if len({row[0] for row in table}) == 1:
        return theirs  # all ranks have made the same calls in the same order
    device = c10d._get_object_coll_device()
    own = [call for call in calls if call.handle is not None]
    prints = [fingerprint(call) for call in own]
    most = max(row[0] for row in gather([len(prints)]))
    rows = gather([section, *prints, *[0] * (most - len(prints))])
    different = {rank for rank, row in enumerate(rows) if row[:2] != rows[0][:2]}
    for call, mine in zip(own[1:], prints[1:], strict=True):
        different.update(rank for rank in members.present(call.ranks) if mine not in rows[rank][1:])
    worst = torch.tensor([max(different, default=-1)], device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)  # only a group's members find its differences
    if int(worst) >= 0:
        raise RefusedError(
            f"ranks {sorted(different or [int(worst)])} made other process groups than their peers, or are in another "
            "resilient function; expected the same calls of new_group on all ranks, before the only resilient function"
        )
    return theirs
