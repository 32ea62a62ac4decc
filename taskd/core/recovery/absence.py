"""Lost nodes that nothing is done about yet, since too few others are heard to decide.

A manager that hears too few of the world's nodes gives up none: it waits for more, and ends the job if none come.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskd.core.recovery.events import Isolated, NodeLost
from taskd.core.recovery.phases import AnyPhase, Phase
from taskd.wire.kinds import NodeRank

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job


@dataclass(slots=True)
class Absence:
    """What is known of a manager that is cut off."""

    held: set[NodeRank] = field(default_factory=set)
    """Places of the lost nodes."""
    cut_off_s: float = 0.0
    """When too few were heard the last time. Whoever was cut off with them is given time to be heard again."""
    since_s: float | None = None
    """Since when too few are heard."""


def look_again(job: "Job", phase: AnyPhase, now_s: float) -> list[NodeLost | Isolated]:
    """Which lost nodes may be given up now, or that it is too late."""
    absence, world = job.absence, job.world
    absence.held &= world.nodes.dead_nodes & set(world.places)
    announcing = phase.kind is Phase.ANNOUNCING
    waiting = absence.held or world.vacant or (set(world.nodes.agreed) if announcing else ())
    if waiting and not job.has_quorum(now_s):
        absence.cut_off_s = now_s
        absence.since_s = now_s if absence.since_s is None else absence.since_s
        if now_s - absence.since_s >= job.policy.deadlines.wait_node_s:
            waited = f"for {job.policy.deadlines.wait_node_s:g} s too few others are heard"
            return [Isolated(f"node {min(waiting)} is lost, and {waited}")]
        return []
    absence.since_s = None
    long_ago = now_s - absence.cut_off_s >= job.policy.membership.suspect_s
    return [NodeLost(place) for place in sorted(absence.held) if long_ago]
