"""Decision on a straggler: it is only reported, or its node leaves the job for a spare.

Rules:

1. A node leaves only if a spare waits for each place and the machine itself is considered slow. Work, pipeline, data
   loading and network are no reason, because a spare would be as slow. (The job must have asked for exclusion, too.)
2. The unit of exclusion is the node: a spare takes a place, not a rank.
3. A rank that was slow from the start leaves only if it is known how much each rank was given to do. Otherwise it may
   have been given more.
4. The exclusion must be worth a pause of all ranks: that begins at an excess of `WORTH`.
"""

from dataclasses import dataclass
from typing import Final

from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.diagnosis import HARDWARE, Straggler
from taskd.wire.kinds import NodeRank

WORTH: Final = 0.10


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Places whose nodes leave, and the reason; or the reason why none does."""

    places: tuple[NodeRank, ...]
    reason: str


def exclusion(found: Straggler, layout: Layout, spares: int, *, even: bool = False) -> Exclusion:
    """Decide which nodes leave. `spares`: nodes that wait for a place; `even`: it is known what each rank has to do."""
    places = tuple(sorted({layout.nodes[rank] for rank in found.blamed if rank in layout.nodes}))
    reason = _why_not(found, places, spares, even)
    if reason:
        return Exclusion((), reason)
    return Exclusion(places, f"node {places[0]} is slower than the others")


def _why_not(found: Straggler, places: tuple[NodeRank, ...], spares: int, even: bool) -> str:
    if found.cause not in HARDWARE:
        return f"another machine would be as slow: it is {found.cause.value}"
    if found.from_start and not even:
        return "it was slow from the start, and may have been given more to do than the others"
    if found.excess < WORTH:
        return f"{found.excess:.0%} is not worth a pause; that begins at {WORTH:.0%}"
    if spares < len(places) or not places:
        return f"{spares} spares wait, and {len(places)} would have to take a place"
    return ""
