"""Choice of the manager for a job of one node when MASTER_ADDR is set and TASKD_MANAGER is not.

Rules:

1. Launch scripts set MASTER_ADDR by habit. Some of them start a manager right before torchrun (`python manager.py &`).
2. A manager starts faster than torchrun, which imports torch. A manager that has not answered after twice the time that
   torchrun has taken will not come. That holds on a slow or loaded machine too. The agent then embeds one.
3. The choice is made once: a job never changes between the two.
"""

from enum import Enum
from typing import Final

LEAST_S: Final = 1.0
MOST_S: Final = 10.0
"""Bounds of the wait. Without them, a torchrun that is called from an old process would wait for ever."""


class NearbyManager(Enum):
    """Action of an agent towards a manager on its own machine that no setting names."""

    USE = "use"
    WAIT = "wait"
    EMBED = "embed"


def choose_manager(waited_s: float, torchrun_s: float, *, answers: bool, trouble: bool) -> NearbyManager:
    """Decide whether a job of one node uses the manager at the default port of its machine.

    Args:
        waited_s: seconds since the agent began to dial.
        torchrun_s: seconds that torchrun had taken until then.
        answers: a manager with this job's secret has accepted the connection.
        trouble: another program, or another job's manager, listens there.

    """
    if answers:
        return NearbyManager.USE
    if trouble or waited_s >= min(MOST_S, max(LEAST_S, torchrun_s)):
        return NearbyManager.EMBED
    return NearbyManager.WAIT
