"""What is remembered of each group that the script made, and how two ranks see that they remember the same."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from taskd.adaptors.groups.handle import GroupHandle


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
    handle: GroupHandle | None = field(default=None, repr=False)  # None for the default group and for non-members

    @property
    def is_default(self) -> bool:
        """Tell whether this is the group of all ranks that `init_process_group` makes."""
        return not self.ranks


def fingerprint(calls: list[GroupCall], section: int) -> int:
    """Return a positive 63-bit number, equal on ranks with the same groups in the same resilient function."""
    text = f"{section}\n" + "\n".join(f"{call.name} {call.ranks} {call.backend} {call.tag}" for call in calls)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
