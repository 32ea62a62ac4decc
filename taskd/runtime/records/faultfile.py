"""The file of one fault: the evidence of all ranks by which its diagnosis was found.

Rules:

1. A path in a record is never followed out of the job's folder.
2. A later fault may have the same number: that of a manager whose journal could not be read, or of an older taskd. So a
   file counts only if it was written for this entry of the journal.
3. Damaged evidence, or that of a newer taskd, is named and not fatal: each rank's evidence is read by itself.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.facts import in_parts
from taskd.runtime.folders.regular import open_record
from taskd.runtime.records.entries import DiagnosisEntry
from taskd.runtime.records.timeline import FAULTS, FaultEntry
from taskd.wire.kinds import JobRank

_FILE_BYTES: Final = 64 << 20
_SAME_S: Final = 5.0
"""Tolerance of times in seconds: journal and file are written one after the other."""


@dataclass(frozen=True, slots=True)
class FaultFile:
    """Content of a fault's file. `raw`: each rank's evidence as stored; `unread`: ranks whose evidence does not fit."""

    file: str
    evidence: dict[JobRank, Evidence] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    problem: str = ""


def read_evidence(folder: Path, fault: FaultEntry) -> FaultFile | None:
    """Return the evidence of one fault; None if its entry names none. A failure stands in `problem`."""
    diagnosis = fault.diagnosis
    if diagnosis is None or not diagnosis.evidence:
        return None
    path = folder / FAULTS / Path(diagnosis.evidence).name
    record = FaultFile(str(path))
    try:
        with open_record(path) as file:
            content = file.read(_FILE_BYTES + 1)
        if len(content) > _FILE_BYTES:
            return replace(record, problem=f"it is larger than {_FILE_BYTES >> 20} MiB")
        found = json.loads(content)
        ranks = {str(int(rank)): value for rank, value in found["evidence"].items()}
        own = _is_of(found, diagnosis)
    except OSError as error:
        return replace(record, problem=error.strerror or str(error))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return replace(record, problem=f"it is damaged ({type(error).__name__})")
    if not own:
        return replace(record, problem="it was written for another fault of that number, of a later job of this name")
    return _converted(replace(record, raw=ranks))


def _is_of(found: dict[str, Any], diagnosis: DiagnosisEntry) -> bool:
    """Return whether a fault's file was written for this entry, as far as their times show."""
    theirs = found.get("diagnosis") if isinstance(found.get("diagnosis"), dict) else {}
    for ours_s, theirs_s in (
        (diagnosis.since_s, theirs.get("since_s")),  # type: ignore[union-attr]
        (diagnosis.monotonic_s, found.get("monotonic_s")),
    ):
        if ours_s is not None and isinstance(theirs_s, int | float):
            return abs(theirs_s - ours_s) <= _SAME_S
    return True


def _converted(record: FaultFile) -> FaultFile:
    found = {rank: _evidence(value) for rank, value in record.raw.items()}
    evidence = {JobRank(int(rank)): known for rank, known in found.items() if known is not None}
    unread = tuple(rank for rank, known in found.items() if known is None)
    return replace(record, evidence=dict(sorted(evidence.items())), unread=unread)


def _evidence(value: object) -> Evidence | None:
    try:
        return msgspec.convert(in_parts(value) if isinstance(value, dict) else value, Evidence)
    except (msgspec.ValidationError, RecursionError):
        return None
