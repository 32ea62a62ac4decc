"""The orders that go out.

Rules:

1. What is wanted is published, with a newer sequence number, when all that was heard at once has been dealt with.
2. The ledger in an order tells the agents, and by them the next manager, who holds which place of the last world.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskd.core.recovery.actions import Publish
from taskd.core.recovery.warmth import Warmth
from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.wire.messages import Directive, Ledger, Order, Place, WorldPlan
from taskd.wire.text import line

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job


@dataclass(frozen=True, slots=True)
class NewestOrder:
    """What was ordered last."""

    order: Order
    plan: WorldPlan | None
    reason: str
    exit_code: int
    at_commit: bool
    meeting: Rendezvous


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
    newest: NewestOrder | None = None
    due: bool = False
    """It has not been issued."""


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
    """Give an order. Without a `reason` it has that of the fault under way."""
    if job.record is not None and not reason:
        reason = job.record.reason
    job.orders.newest = NewestOrder(order, plan, line(reason), exit_code, at_commit, meeting)
    job.orders.due = True


def issue(job: "Job") -> None:
    """Publish the newest order, and what is wanted by now of every rank. Those before it would be obsolete at once."""
    orders, world, newest = job.orders, job.world, job.orders.newest
    if newest is None or not orders.due:
        return
    orders.due = False
    orders.sequence += 1
    orders.directive = Directive(
        job_id=job.policy.job_id,
        sequence=orders.sequence,
        generation=world.generation,
        order=newest.order,
        ranks=tuple(world.ranks[rank].order(rank) for rank in world.members),
        plan=newest.plan,
        reason=newest.reason,
        exit_code=newest.exit_code,
        node_count=job.policy.node_count,
        at_commit=newest.at_commit,
        probe=orders.probe,
        store_host=newest.meeting.host,
        store_port=newest.meeting.port,
        store_key=newest.meeting.key,
        places=world.nodes.table(),
        ledger=Ledger(
            term=orders.term,
            places=world.places,
            agreed=tuple(Place(node_rank=place, agent_id=agent) for place, agent in sorted(world.nodes.agreed.items())),
            spent=job.budget.spent if job.budget is not None else 0,
            excluded=tuple(sorted(world.nodes.excluded)),
            cold=world.warm_starts.warmth is Warmth.AVOIDED,
        ),
    )
    job.out.insert(0, Publish(orders.directive))
