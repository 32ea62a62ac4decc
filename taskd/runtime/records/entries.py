"""Content of a journal's entries, as a reader accepts them.

Rules:

1. A number has the range of the message that carried it, so that no page has to check it. An entry with another value
   is damaged. So is one with a sequence that no job could have.
2. A text is as it stands in the journal. Code that shows it makes it safe.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskd.wire.bounds import MOST_RANKS, ClockSeconds, Counter, MaybeCounter, MaybeNode, OfJob, Signed, Status

_KEY_CHARS: Final = 64
_PHASES: Final = 64
_LARGEST_MS: Final = 1e15

Milliseconds = Annotated[float, Meta(ge=-_LARGEST_MS, le=_LARGEST_MS)]
Key = Annotated[str, Meta(max_length=_KEY_CHARS)]
"""Rank as a JSON key, or the name of a phase."""
Ranks = Annotated[tuple[OfJob, ...], Meta(max_length=MOST_RANKS)]
Pids = Annotated[dict[Key, Signed], Meta(max_length=MOST_RANKS)]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Fact held against one rank; `kind` by its name."""

    rank: OfJob
    kind: str
    text: str


class HangFact(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why silence was taken for a hang."""

    silent_s: ClockSeconds | None = None
    limit_s: ClockSeconds | None = None
    usual_s: ClockSeconds | None = None
    reason: str = ""


class DiagnosisEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosis in the journal. `since_s` and `monotonic_s` are of the manager's monotonic clock."""

    kind: str
    title: str = ""
    culprits: Ranks = ()
    victims: Ranks = ()
    sentence: str = ""
    facts: tuple[Fact, ...] = ()
    hang: HangFact | None = None
    fault: Counter | None = None
    step: MaybeCounter | None = None
    generation: Counter | None = None
    since_s: ClockSeconds | None = None
    unix_s: ClockSeconds | None = None
    monotonic_s: ClockSeconds | None = None
    evidence: str | None = None

    @property
    def took_s(self) -> float | None:
        """Time in seconds from the fault, or from the last progress before a hang, to the diagnosis."""
        known = self.since_s is not None and self.monotonic_s is not None
        return round(self.monotonic_s - self.since_s, 6) if known else None  # type: ignore[operator]


class RecoveryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery in the journal."""

    strategy: str
    reason: str = ""
    restart: bool = False
    causes: Annotated[dict[Key, str], Meta(max_length=MOST_RANKS)] = {}
    attempts: Counter | None = None
    setbacks: tuple[str, ...] = ()
    step: MaybeCounter | None = None
    target_step: MaybeCounter | None = None
    steps_redone: Counter = 0
    inexact: Annotated[dict[Key, str], Meta(max_length=MOST_RANKS)] = {}
    generation: Counter | None = None
    detected_s: ClockSeconds | None = None
    phases_ms: Annotated[dict[Key, Milliseconds], Meta(max_length=_PHASES)] = {}
    kept: Pids = {}
    replaced: Pids = {}
    fault: Counter | None = None
    unix_s: ClockSeconds | None = None
    monotonic_s: ClockSeconds | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """End of the job."""

    reason: str = ""
    exit_code: Status | None = None
    unix_s: ClockSeconds | None = None


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one node, by rank."""

    pids: Pids
    node_rank: MaybeNode | None = None


class DirectiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Purpose of a directive."""

    generation: Counter | None = None
    phase: Key = ""
