"""The result of a diagnosis: the kind of fault, its culprits and victims, and the reasons."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.wire.kinds import JobRank

_RANGES_TOLD: Final = 6


class Kind(Enum):
    """Kind of fault of a rank. With several culprits, the diagnosis has the kind that comes first here."""

    OOM_CGROUP = "killed for memory"
    OOM_DEVICE = "device out of memory"
    OOM_HOST = "host out of memory"
    DISK_FULL = "disk full"
    CRASHED = "crashed in native code"
    KILLED = "killed by a signal"
    ABORTED = "aborted"
    EXCEPTION = "uncaught exception"
    EXITED = "exited with an error status"
    EXITED_EARLY = "exited too early"
    DYING = "dying"
    OP_MISMATCH = "another operation"
    SIZE_MISMATCH = "another size"
    SKIPPED = "skipped a collective"
    FROZEN = "frozen"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible sleep"
    GIL_HELD = "GIL held by native code"
    LOCK_FILE = "waiting for a lock file"
    DATA_BLOCKED = "data loader blocked"
    DEADLOCK = "Python deadlock"
    BLOCKED = "blocked in native code"
    LOOP = "no progress in Python code"
    DEVICE_BEHIND = "device behind"
    BEHIND = "behind"
    CONNECTION_CUT = "connection cut"
    SILENT = "silent node"
    NON_FINITE = "loss not finite"
    CORRUPTED = "silent data corruption"
    ORPHANED = "orphaned child"
    SLOW = "slow rank"
    SLOW_NODE = "slow node"
    SLOW_LOADING = "slow data loading"
    SLOW_NETWORK = "slow network"
    UNEVEN = "uneven work"
    STALLED = "no progress, cause unknown"
    WAITING = "waiting for another rank"
    COLLATERAL = "failed because of another rank"


VICTIMS: Final = (Kind.WAITING, Kind.COLLATERAL)
PRESUMED: Final = (Kind.DATA_BLOCKED, Kind.BLOCKED, Kind.LOOP, Kind.DEVICE_BEHIND, Kind.BEHIND, Kind.STALLED)
"""Kinds that rest on silence alone. A rank that is only slow shows the same signs, for a shorter time."""

PACES: Final = (Kind.SLOW, Kind.SLOW_NODE, Kind.SLOW_LOADING, Kind.SLOW_NETWORK, Kind.UNEVEN)
"""Kinds of a job that makes progress, but more slowly than it could."""

_PRECEDENCE: Final = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding on one rank. `text` is a sentence without its subject."""

    rank: JobRank
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of one fault.

    Attributes:
        culprits: ranks to be treated as failed. Empty if none can be blamed: a connection is at fault, or the cause is
            unknown.
        victims: ranks that wait for a culprit, or have failed because of one.
        sentence: for the job's log: the fault, its ranks, and the reasons for the diagnosis.
        facts: one finding for each culprit, and more where something else was seen besides.

    """

    kind: Kind
    culprits: tuple[JobRank, ...]
    victims: tuple[JobRank, ...]
    sentence: str
    facts: tuple[Finding, ...]
    proven: bool = True
    """True if no culprit can go on by itself. A death proves itself; for a hang see `core/diagnosis/proof.py`."""
    proof: str = ""
    """For a hang: the reason why it is certain, or why it is not."""


def precedence(kind: Kind) -> int:
    """Return the place of a kind in reports. A smaller place is reported first."""
    return _PRECEDENCE[kind]


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: the gravest kind first, then by rank."""
    return tuple(sorted(findings, key=lambda finding: (_PRECEDENCE[finding.kind], finding.rank)))


def names(ranks: Iterable[int]) -> str:
    """Return `rank 3`, or `ranks 0, 1 and 4-7`.

    A text of very many pieces has only the first ones, and the number of ranks.
    """
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    pieces = [piece for run in runs for piece in _pieces(run)]
    if len(pieces) > _RANGES_TOLD:
        return f"ranks {', '.join(pieces[:_RANGES_TOLD])} … ({len(numbers)} in all)"
    *front, last = pieces
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(front)}{' and ' * bool(front)}{last}"


def _pieces(run: list[int]) -> list[str]:
    if run[-1] - run[0] > 1:
        return [f"{run[0]}-{run[-1]}"]
    return [str(number) for number in run]
