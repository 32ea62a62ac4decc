"""Ranks without torchrun: actors, or any processes that another program starts and replaces.

A process that outlives the ranks calls `manager` and sends its `ticket` to each rank's process. Each of these calls
`agent` with the ticket and its rank. Then it sets itself up and enters its `taskd.resilient` function. When a process
is lost, the program that started it starts another one that does the same. The other processes stay.
"""

from typing import TYPE_CHECKING

from taskd.adaptors.actors.attach import Agent, attach
from taskd.adaptors.actors.ticket import Ticket

if TYPE_CHECKING:
    from taskd.adaptors.actors.office import Office

__all__ = ["Agent", "Ticket", "agent", "manager"]

_TIMEOUT_S = 600.0


def manager(world_size: int, *, host: str | None = None, **keys: object) -> "Office":
    """Manage a job of `world_size` ranks, from a thread of this process. The process must outlive the ranks.

    Args:
        world_size: number of ranks of the job.
        host: the address at which the ranks' hosts reach this one; None if all ranks are on this machine.
        keys: keys of the dict of `init_taskd_manager` (docs/configuration.md): `job_id`, `max_restarts`, ...

    Returns:
        An object with the `ticket` that each rank's process needs, and `close()`.

    Raises:
        ConfigError: a key is unknown or wrong.
        LinkError: the address cannot be used.
    """
    from taskd.adaptors.actors.office import Office

    return Office(world_size, host, keys)


def agent(ticket: Ticket, rank: int, *, timeout_s: float = _TIMEOUT_S) -> Agent:
    """Make this process a rank of the job. Call it before the process makes a process group.

    In the first process of a rank it returns at once. In a process that replaces another one, it returns when the
    former process is known to be lost. Then `joins` of the result is true: the set-up up to the first resilient
    function runs without the other ranks, which go on.

    Args:
        ticket: the ticket of the `manager`.
        rank: this process's rank in the job.
        timeout_s: how long to wait until the manager wants a new process of the rank, in seconds. It also limits the
            wait for an agent that does not answer, but to no less than 5 s.

    Raises:
        ConfigError: the job has no such rank, or this process holds another.
        LinkError: the manager does not answer, or did not want this process in that time.
        RebuildError: this process has a process group already.
    """
    return attach(ticket, rank, timeout_s)
