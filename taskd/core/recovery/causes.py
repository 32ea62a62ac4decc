"""Of what a process has ended, or with what error it came out: as a value for decisions, with a text for people.

Rules:

1. Causes are equal if their kind, their exit status and their detail are: what is told of them in words counts nowhere.
2. The detail of an error is the error without what differs each time (`error_texts.py`): numbers, identifiers,
   temporary names. `exact` keeps small numbers: an index or a rank may tell the errors of two ranks apart.
3. What an error is about is read from it once, here: decisions are by the kind.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from taskd.core.diagnosis.conditions import of_a_connection
from taskd.core.diagnosis.faults import BUILT_IN, classify
from taskd.core.recovery.error_texts import without_long_numbers, without_what_varies
from taskd.wire.messages import RankStatus

_OF_ITSELF: Final = -6
"""SIGABRT. torch aborts a process now and then that leaves."""
_FROM_LAUNCHERS: Final = (-6, -15)
"""What a launcher sends to the others when one has failed, or what comes of it."""


class CauseKind(Enum):
    """What sort of cause it is."""

    EXITED = "exited"  # with a status other than 0
    EXITED_EARLY = "exited early"  # with status 0, before the others
    SIGNALLED = "signalled"
    CAME_OUT = "came out"  # of its collectives, with an error; the process lives
    CUT_OFF = "cut off"  # the same with an error of a connection: perhaps a consequence of what has happened to a peer
    DIAGNOSED = "diagnosed"  # by what is known of all ranks
    NODE = "node"  # it was lost with its node, or moves from it
    FENCED = "fenced"  # it was late
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """One rank's. `status` is that of its process, as Python's subprocess has it: negative for a signal.

    `detail` tells it from others of its kind: an error, a diagnosis, what it was late for.
    """

    kind: CauseKind
    text: str = field(default="", compare=False)
    status: int | None = None
    raised: bool = False
    """The process itself has said by what error it ends."""
    detail: str = ""
    exact: str = field(default="", compare=False)
    """The detail with the small numbers that the error names."""
    own: bool = field(default=False, compare=False)
    """An error of the script, of which nobody knows that it may pass: no connection, no machine explains it."""

    @property
    def by_itself(self) -> bool:
        """Nobody outside has ended the process."""
        return self.kind in (CauseKind.EXITED, CauseKind.EXITED_EARLY) or self.status == _OF_ITSELF

    @property
    def explains_itself(self) -> bool:
        """A signal from outside, or for what the process itself has done. Else another rank may be at fault."""
        return self.kind is CauseKind.SIGNALLED and self.status not in _FROM_LAUNCHERS


EARLY: Final = Cause(CauseKind.EXITED_EARLY, "it exited with status 0 before the others", 0)


UNKNOWN: Final = Cause(CauseKind.UNKNOWN)


def of_report(report: RankStatus) -> Cause:
    """That of a rank's process, by what its agent reports of it."""
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
