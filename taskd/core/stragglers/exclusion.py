"""Whether a straggler is only told, or its node leaves the job for a spare.

Rules:

1. A node leaves only if a spare waits for each place, and the machine itself is held to be slow: never for work,
   pipeline, data loading or network, which a spare would have as well. (The job must have asked for it, too.)
2. The unit of exclusion is the node: a spare takes a place, not a rank.
3. What has been slow from the start leaves only if it is known how much each rank was given to do: otherwise it may
   have been given more.
4. It must be worth a pause of all: `WORTH` and more.
"""

from dataclasses import dataclass
from typing import Final

from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.diagnosis import HARDWARE, Straggler
from taskd.wire.kinds import NodeRank

WORTH: Final = 0.10


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The places whose nodes leave, and why; or why none does."""

    places: tuple[NodeRank, ...]
    reason: str


def exclusion(found: Straggler, layout: Layout, spares: int, *, even: bool = False) -> Exclusion:
    """What follows from a diagnosis. `spares`: nodes that wait for a place; `even`: it is known what each has to do."""
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
