"""Health of a node by the length of its silence: alive, suspect or dead. Time comes in, a `Health` goes out."""

from enum import Enum

from taskd.core.policy import Membership


class Health(Enum):
    """Health of an agent, as the manager judges it."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # ask its kernel: does anybody listen at its store's port?
    DEAD = "dead"


def health(last_heard_s: float, now_s: float, policy: Membership) -> Health:
    """Return the health of an agent whose last report came at `last_heard_s`."""
    silent_s = now_s - last_heard_s
    if silent_s >= policy.dead_s:
        return Health.DEAD
    return Health.SUSPECT if silent_s >= policy.suspect_s else Health.ALIVE


def quorum(members: int, heard: int, replaced: int, *, first_heard: bool) -> bool:
    """Return whether a manager that receives reports from this many of a world's nodes may decide about the others.

    More than half must report. Exactly half is enough on the side of the world's first node: if a world was cut in
    two, at most one side goes on. Fewer are enough only if the others are gone for certain. `replaced` counts nodes
    that a scheduler or a person knows to be gone, and has started a newcomer for. Together with them, no node may be
    left of which nothing is known. A newcomer alone has no vote, because it does not know the agreements of the node
    before it. A world of which no node reports may be whole and training, without this manager.
    """
    if members and not heard:
        return False
    if heard + replaced >= members:
        return True
    return 2 * heard > members or (2 * heard == members and first_heard)
