"""Whether what a node says of the job's past can be true.

Rules:

1. Generations, incarnations and terms only grow, so one number from far beyond would stay for good, and what is counted
   on from it would soon fit no message. A job that recovers once a second takes two weeks to get so far.
2. A manager that takes a job over knows nothing yet: it believes more, and still has room to count on.
"""

from typing import Final

from taskd.core.world import newest_generation
from taskd.wire.messages import NodeStatus

MOST_AHEAD: Final = 1 << 20
"""Generations, or incarnations, that a node may be ahead of its manager."""
MOST_AT_FIRST: Final = 1 << 30
MOST_AHEAD_MS: Final = 24 * 3600 * 1000
"""Of a term, which is the wall clock of a manager at its start in ms."""


def implausible(status: NodeStatus, *, generation: int, forming: bool, term: int) -> str:
    """What cannot be true of it, for a manager of this term whose job is in this generation; "" if all can."""
    limit = MOST_AT_FIRST if forming else generation + MOST_AHEAD
    newest = max(newest_generation(status), *(rank.incarnation for rank in status.ranks), 0)
    if newest > limit:
        return f"found generation or incarnation {newest}, expected at most {limit}"
    last_term = max(status.ledger.term, *(rank.term for rank in status.ranks), 0)
    if last_term > term + MOST_AHEAD_MS:
        return f"found a manager of term {last_term}, expected at most {term + MOST_AHEAD_MS}; set the nodes' clocks"
    return ""
