"""From the time since a node was last heard to a verdict. Time comes in, a verdict goes out."""

from enum import Enum

from taskd.core.policy import Membership


class Health(Enum):
    """What the manager believes of an agent."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


def health(last_heard_s: float, now_s: float, policy: Membership) -> Health:
    """The verdict on an agent that was last heard at `last_heard_s`."""
    silent_s = now_s - last_heard_s
    if silent_s >= policy.dead_s:
        return Health.DEAD
    return Health.SUSPECT if silent_s >= policy.suspect_s else Health.ALIVE
