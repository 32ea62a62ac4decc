"""How long a node was silent decides its health: alive, suspect or dead. Time comes in, a `Health` goes out."""

from enum import Enum

from taskd.core.policy import Membership


class Health(Enum):
    """What the manager believes of an agent."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # ask its kernel: does anybody listen at its store's port?
    DEAD = "dead"


def health(last_heard_s: float, now_s: float, policy: Membership) -> Health:
    """The health of an agent that was last heard at `last_heard_s`."""
    silent_s = now_s - last_heard_s
    if silent_s >= policy.dead_s:
        return Health.DEAD
    return Health.SUSPECT if silent_s >= policy.suspect_s else Health.ALIVE


def quorum(members: int, heard: int, replaced: int, *, first_heard: bool) -> bool:
    """Whether a manager that hears so many of a world's nodes may decide about the others.

    More than half must be heard. Exactly half is enough on the side of the world's first node: of a world that was cut
    in two, one side at most goes on. Fewer are enough only if the others are gone for certain: `replaced` are those in
    whose place a newcomer was started by somebody who knows that (a scheduler, a person), and with them nobody must be
    left of whom nothing is known. A newcomer alone has no voice: it does not know what the node before it had agreed
    to. A world of which nobody is heard may be whole and training, without this manager.
    """
    if members and not heard:
        return False
    if heard + replaced >= members:
        return True
    return 2 * heard > members or (2 * heard == members and first_heard)
