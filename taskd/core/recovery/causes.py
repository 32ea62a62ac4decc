"""Why a process ended, or the error it raised: a value for decisions, with a text for people.

Rules:

1. Causes are equal if their kind, exit status, `raised` and detail are. Their texts for people never count.
2. The detail of an error is its text without the parts that vary (`error_texts.py`): numbers, identifiers, temporary
   names. `exact` keeps small numbers, because an index or a rank may distinguish the errors of two ranks.
3. The kind of an error is read from its text once, here. Decisions use the kind.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from taskd.core.diagnosis.conditions import of_a_connection
from taskd.core.diagnosis.faults import BUILT_IN, classify
from taskd.core.recovery.error_texts import without_long_numbers, without_what_varies
from taskd.wire.messages import RankStatus

_OF_ITSELF: Final = -6
"""SIGABRT. torch sometimes aborts a process that exits."""
_FROM_LAUNCHERS: Final = (-6, -15)
"""Exit statuses that a launcher causes in the other processes when one has failed."""


class CauseKind(Enum):
    """Kind of a cause."""

    EXITED = "exited"  # with a status other than 0
    EXITED_EARLY = "exited early"  # with status 0, before the others
    SIGNALLED = "signalled"
    CAME_OUT = "came out"  # it left its collectives with an error; the process lives
    CUT_OFF = "cut off"  # the same with an error of a connection, perhaps a consequence of a peer's failure
    DIAGNOSED = "diagnosed"  # by the evidence of all ranks
    NODE = "node"  # it was lost with its node, or moves to another one
    FENCED = "fenced"  # it was late, and killed
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one rank failed.

    `status` is the exit status of its process as in Python's `subprocess`: negative for a signal. `detail` separates it
    from other causes of its kind: an error, a diagnosis, or the deadline that was missed.
    """

    kind: CauseKind
    text: str = field(default="", compare=False)
    status: int | None = None
    raised: bool = False
    """The process itself has reported the error that ended it."""
    detail: str = ""
    exact: str = field(default="", compare=False)
    """Detail with the small numbers of the error kept."""
    own: bool = field(default=False, compare=False)
    """The error is the script's own and not known to be temporary: no connection and no machine explains it."""

    @property
    def by_itself(self) -> bool:
        """True if nothing outside has ended the process."""
        return self.kind in (CauseKind.EXITED, CauseKind.EXITED_EARLY) or self.status == _OF_ITSELF

    @property
    def explains_itself(self) -> bool:
        """True for a signal from outside, or for the process's own act. Otherwise another rank may be at fault."""
        return self.kind is CauseKind.SIGNALLED and self.status not in _FROM_LAUNCHERS


EARLY: Final = Cause(CauseKind.EXITED_EARLY, "it exited with status 0 before the others", 0)


UNKNOWN: Final = Cause(CauseKind.UNKNOWN)


def of_report(report: RankStatus) -> Cause:
    """Return the cause for a rank, from its agent's report of the process."""
    status, text, error = report.status, report.cause, report.error
    detail, exact = without_what_varies(error), without_long_numbers(error)
    known = report.kind or of_a_connection(error) or classify(error, BUILT_IN)
    if status is None:
        came_out = CauseKind.CUT_OFF if of_a_connection(text) else CauseKind.CAME_OUT
        kind = came_out if text else CauseKind.UNKNOWN
        return Cause(kind, text, detail=detail, exact=exact, own=bool(error) and not known)
    kind = CauseKind.SIGNALLED if status < 0 else CauseKind.EXITED
    own = report.raised and bool(error) and not known
    return Cause(kind, text, status, report.raised, detail, exact, own)
