"""Ranks that no torchrun has started: actors, or any processes that somebody else starts and replaces.

One place, which outlives the ranks, calls `manager` and sends its `ticket` to each process. Each process calls `agent`
with the ticket and its rank, then sets itself up and enters its `taskd.resilient` function. When one is lost, whoever
has started it starts another one that does the same; the others stay.
"""

from typing import TYPE_CHECKING

from taskd.adaptors.actors.attach import Agent, attach
from taskd.adaptors.actors.ticket import Ticket

if TYPE_CHECKING:
    from taskd.adaptors.actors.office import Office

__all__ = ["Agent", "Ticket", "agent", "manager"]

_TIMEOUT_S = 600.0


def manager(world_size: int, *, host: str | None = None, **keys: object) -> "Office":
    """Manage a job of `world_size` ranks, from a thread of this process. It must outlive the ranks.

    Args:
        world_size: ranks of the job.
        host: the address at which the ranks' hosts reach this one; None if all are on this machine.
        keys: as in the dict of `init_taskd_manager` (docs/configuration.md): `job_id`, `max_restarts`, ...

    Returns:
        An object with the `ticket` that each rank's process needs, and `close()`.

    Raises:
        ConfigError: a key is unknown or wrong.
        LinkError: the address cannot be used.
    """
    from taskd.adaptors.actors.office import Office

    return Office(world_size, host, keys)


def agent(ticket: Ticket, rank: int, *, timeout_s: float = _TIMEOUT_S) -> Agent:
    """Make this process a rank of the job; called before it makes a process group.

    In the first process of a rank it returns at once. In one that replaces another it returns when that is known to be
    lost, and `joins` of the result is true: what follows up to the first resilient function runs without the others
    then, whose processes go on.

    Args:
        ticket: of the `manager`.
        rank: this process's rank in the job.
        timeout_s: so long it waits until a new process of the rank is wanted. An agent that does not answer is waited
            for no longer either, but for at least 5 s.

    Raises:
        ConfigError: the job has no such rank, or this process holds another.
        LinkError: the manager does not answer, or nobody wanted this process in that time.
        RebuildError: this process has a process group already.
    """
    return attach(ticket, rank, timeout_s)
