"""What a manager does first, and what it takes over from a former one."""

from dataclasses import replace

from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.warmth import WarmStarts, Warmth
from taskd.core.recovery.world import newest_generation
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Ledger, Order


def take_over(job: Job, now_s: float, ledger: Ledger) -> None:
    """Go on with the job of an earlier manager; places of its world that are not heard are dead."""
    world = job.world
    world.nodes.excluded.update(ledger.excluded)
    if ledger.cold:
        world.warm_starts = WarmStarts(Warmth.AVOIDED)
    if job.budget is not None:
        spent = max(view.status.ledger.spent for view in world.nodes.views())
        job.budget = replace(job.budget, spent=spent, since_s=now_s)
    for place in sorted(set(ledger.places) - set(world.nodes.holders)):
        world.expect(place, job.policy.ranks_per_node, now_s)
        world.nodes.dead_nodes.add(place)


def stop_again(job: Job, now_s: float, place: NodeRank) -> None:
    """The order that has ended the job, in a generation newer than all that an agent knows."""
    last = job.orders.newest
    job.world.generation = newest_generation(job.world.nodes.by_place[place].status)
    if last is not None:
        send(job, now_s, Order.STOP, reason=last.reason, exit_code=last.exit_code)
