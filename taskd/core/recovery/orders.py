"""The orders that go out.

Rules:

1. Every change of what is wanted is published, with a newer sequence number.
2. The ledger in an order tells the agents, and by them the next manager, who holds which place of the last world.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskd.core.recovery.actions import Publish
from taskd.core.recovery.record import tell
from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.wire.messages import Directive, Ledger, Order, Place, WorldPlan
from taskd.wire.text import line

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job


@dataclass(slots=True)
class Orders:
    """Numbers of what this manager has sent."""

    sequence: int = 0
    """Number of the newest directive. The first of a new manager must exceed those of the job's former ones."""
    term: int = 0
    """Number of this manager: agents obey the highest that they know."""
    probe: int = 0
    """Number of the newest question to the agents."""
    directive: Directive | None = None


def send(
    job: "Job",
    _now_s: float,
    order: Order,
    plan: WorldPlan | None = None,
    *,
    reason: str = "",
    exit_code: int = 0,
    at_commit: bool = False,
    meeting: Rendezvous = NOWHERE,
) -> None:
    """Publish a directive. Without a `reason` it names the causes of the fault under way."""
    orders, world = job.orders, job.world
    if job.record is not None and not reason:
        reason = tell(job.record.causes)
    orders.sequence += 1
    orders.directive = Directive(
        job_id=job.policy.job_id,
        sequence=orders.sequence,
        generation=world.generation,
        order=order,
        ranks=tuple(world.ranks[rank].order(rank) for rank in sorted(world.ranks)),
        plan=plan,
        reason=line(reason),
        exit_code=exit_code,
        node_count=job.policy.node_count,
        at_commit=at_commit,
        probe=orders.probe,
        store_host=meeting.host,
        store_port=meeting.port,
        store_key=meeting.key,
        places=world.nodes.table(),
        ledger=Ledger(
            term=orders.term,
            places=world.places,
            agreed=tuple(Place(node_rank=place, agent_id=agent) for place, agent in sorted(world.nodes.agreed.items())),
            spent=job.budget.spent if job.budget is not None else 0,
            excluded=tuple(sorted(world.nodes.excluded)),
        ),
    )
    job.out.append(Publish(orders.directive))
