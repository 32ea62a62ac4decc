"""Plausibility checks: of a node's report about the job's past, and of a manager's directive for a node.

Rules:

1. Generations, incarnations and terms only grow. So one number from far beyond would stay for good, and numbers counted
   on from it would soon fit no message. A job that recovers once a second takes two weeks to get `MOST_AHEAD` further.
2. A manager that takes over a job knows nothing yet. It accepts larger numbers, and still has room to count on.
3. A directive is obeyed as a whole or not at all. No part of an impossible world is accepted.
"""

from typing import Final

from taskd.core.recovery.world import newest_generation
from taskd.wire.bounds import MOST_RANKS, NUMBERS
from taskd.wire.messages import Directive, NodeStatus

MOST_AHEAD: Final = 1 << 20
"""Generations, or incarnations, by which a node may be ahead of its manager."""
MOST_AT_FIRST: Final = 1 << 30
LAST: Final = NUMBERS - MOST_AHEAD
"""Highest number to which reports can raise the job's, even step by step: an agent takes no order above `NUMBERS`."""
MOST_AHEAD_MS: Final = 24 * 3600 * 1000
"""Milliseconds by which a term may be ahead. A term is the wall clock of a manager at its start."""


def implausible(status: NodeStatus, *, generation: int, forming: bool, term: int) -> str:
    """Return the part of a report that cannot be true; "" if all of it can.

    `term`: that of this manager. `generation`: that of its job.
    """
    limit = MOST_AT_FIRST if forming else min(generation + MOST_AHEAD, LAST)
    newest = max(newest_generation(status), *(rank.incarnation for rank in status.ranks), 0)
    if newest > limit:
        return f"found generation or incarnation {newest}, expected at most {limit}"
    last_term = max(status.ledger.term, *(rank.term for rank in status.ranks), 0)
    if last_term > term + MOST_AHEAD_MS:
        return f"found a manager of term {last_term}, expected at most {term + MOST_AHEAD_MS}; set the nodes' clocks"
    return ""


def strange(directive: Directive, per_node: int) -> str:
    """Return why a node with `per_node` ranks cannot carry out a directive; "" if it can."""
    count, plan = directive.node_count, directive.plan
    if count * per_node > MOST_RANKS:
        return f"found {count} places of {per_node} ranks, expected at most {MOST_RANKS} ranks"
    most = count or MOST_RANKS // per_node  # 0: the number of places is not known
    places = max((place.node_rank for place in directive.places), default=0)
    if places >= most:
        return f"found place {places}, expected 0 to {most - 1}"
    rank = max((order.rank for order in directive.ranks), default=0)
    if rank >= most * per_node:
        return f"found rank {rank}, expected 0 to {most * per_node - 1}"
    if not count and any(order.joins for order in directive.ranks):
        return "found a newcomer to a job of unknown size, expected its places"
    if plan is not None and plan.generation != directive.generation:
        return f"found a plan of generation {plan.generation}, expected {directive.generation}"
    return ""
