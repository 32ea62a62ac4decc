"""Time that the start of a rank's new process waits for a warm process, before a cold one is started.

A cold process repeats the template's imports, begins later, and takes processor time from the template. So a busy
template is waited for. It is given up only if it takes so much longer than the ranks did that something holds it up.
"""

from dataclasses import dataclass
from typing import Final

RESERVE: Final = 1
"""Standbys that a node keeps in addition to the wanted number, because two ranks may die at once.

They share their memory with the template.
"""
FORK_S: Final = 5.0
"""Limit for a finished template to make a requested standby."""
LEAST_IMPORT_S: Final = 10.0
"""Limit for a template's imports, in a job whose ranks have started fast."""
_TIMES_A_START: Final = 2.0


@dataclass(frozen=True, slots=True)
class Warming:
    """State of a node's template.

    Attributes:
        forks: it can make a standby now.
        importing_s: time that it has been importing; None if it is not importing.
        first_start_s: time that the ranks needed from their start to their first commit; None before that.

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
