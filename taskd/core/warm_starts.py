"""How long a rank's new process waits for a warm one before it is started cold.

A cold process imports what the template imports, begins later, and takes processor time from it. So a template that is
at work is waited for, unless it has taken so much longer than the ranks themselves that something holds it up.
"""

from dataclasses import dataclass
from typing import Final

RESERVE: Final = 1
"""Standbys beside those that a node is to have, which share their memory: two ranks may die at once."""
FORK_S: Final = 5.0
"""Limit for a standby that a finished template has been asked for."""
LEAST_IMPORT_S: Final = 10.0
"""Limit for a template's imports, in a job whose ranks have started fast."""
_TIMES_A_START: Final = 2.0


@dataclass(frozen=True, slots=True)
class Warming:
    """What a node's template is about.

    Attributes:
        forks: it can make a standby now.
        importing_s: how long it has been importing; None if it is not.
        first_start_s: what the ranks needed from their start to their first commit; None before.

    """

    forks: bool = False
    importing_s: float | None = None
    first_start_s: float | None = None


def wait_s(warming: Warming) -> float:
    """Return the seconds for which a standby is worth waiting for; 0 or less to start the process cold at once."""
    if warming.forks:
        return FORK_S
    if warming.importing_s is None:
        return 0.0
    return max(LEAST_IMPORT_S, _TIMES_A_START * (warming.first_start_s or 0.0)) - warming.importing_s
