"""Descriptors that torchrun needs with taskd in it, and the response to a lower limit.

Rules:

1. They are counted before taskd opens its first one: ZeroMQ ends a process that gets no descriptor.
2. If they exceed the soft limit, it is raised to the hard limit. The ranks get the user's limit back.
3. If they exceed the hard limit too, or a rank could not get its limit back, torchrun runs without taskd.
"""

from dataclasses import dataclass
from typing import Final

from taskd.core.warm_starts import RESERVE

_STOCK: Final = 12
"""Descriptors that torchrun opens after taskd has counted: its store, and the pipes of a process that starts."""
_STOCK_PER_RANK: Final = 2
"""A connection to torchrun's store, and one that is closed late."""
_LOGS_PER_RANK: Final = 4
"""Two log files, and each of them once more to follow it."""
_AGENT: Final = 17
"""Agent's wakers and sockets, its link to the manager, its directories, and the store of a new world."""
_MANAGER: Final = 15
"""An embedded manager's socket with its monitor, the agent's connection to it, and the job's records."""
_PER_RANK: Final = 3
"""A rank's link, the descriptor that signals its end, and one more while its process is replaced."""
_MEMORY_PER_RANK: Final = 9
"""Memory for its position, set-up and marks, and for six copies of states."""
_TEMPLATE: Final = 4
"""The template's link, and the pipes for its start."""


@dataclass(frozen=True)
class DescriptorPlan:
    """Decision on the limit. `limit`: soft limit to set, None to leave it. `refusal`: why taskd stays out, or ""."""

    limit: int | None = None
    refusal: str = ""


def needed_descriptors(open_now: int, ranks: int, standbys: int, nodes: int, *, embeds: bool, logs: bool) -> int:
    """Return the most descriptors that torchrun has open at once with taskd in it.

    Args:
        open_now: descriptors that are open before taskd opens any.
        ranks: ranks of this node.
        standbys: warm processes that the node is to keep. One more is in reserve.
        nodes: nodes of the job. The ranks of all nodes connect to the store of one node.
        embeds: whether the manager runs in this process.
        logs: whether torchrun writes or follows log files of the ranks.

    """
    stock = _STOCK + (_STOCK_PER_RANK + (_LOGS_PER_RANK if logs else 0)) * ranks
    pool = _TEMPLATE + standbys + RESERVE if standbys else 0
    own = _AGENT + (_MANAGER if embeds else 0) + (_PER_RANK + _MEMORY_PER_RANK) * ranks + pool
    return open_now + stock + own + ranks * nodes


def plan_descriptors(needed: int, soft: int, hard: int, obstacle: str = "") -> DescriptorPlan:
    """Decide how torchrun gets `needed` descriptors. `obstacle`: why a rank could not get its limit back, or ""."""
    if needed <= soft:
        return DescriptorPlan()
    if needed <= hard and not obstacle:
        return DescriptorPlan(limit=hard)
    found = f"found a limit of {soft if obstacle else hard} descriptors, expected at least {needed}"
    why = f" (it cannot be raised here: {obstacle})" if obstacle and needed <= hard else ""
    return DescriptorPlan(refusal=f"{found}{why}; raise it with `ulimit -n {needed}` or more before torchrun")
