"""Output of `taskd blackbox --json`: one JSON document. docs/blackbox.md explains its fields.

Rules:

1. Fields may be added at any time. When a field changes its meaning or is removed, `VERSION` rises.
2. An unknown value is null. So is a number that is not finite, because JSON has none, and a value that is nested too
   deeply.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from taskd.cli.fault_page import outcome, title, told_in_full
from taskd.cli.job_page import Evidenced, Kept, is_recovering, is_running
from taskd.runtime.records.faultfile import FaultFile
from taskd.runtime.records.selfcheck import CheckVerdict
from taskd.runtime.records.snapshot import BoxSnapshot
from taskd.runtime.records.timeline import FaultEntry, KeptBox, Timeline

VERSION: Final = 1
_DEEPEST: Final = 100
Document = dict[str, Any]


def process_document(snapshot: BoxSnapshot) -> Document:
    """Return the document of one process."""
    return {"kind": "process", "process": asdict(snapshot)}


def job_document(
    jobs: Sequence[Timeline], ranks: Sequence[BoxSnapshot], kept: Kept, read: Evidenced, *, everything: bool
) -> Document:
    """Return the document of the last of these jobs, with a summary of each.

    Without `everything`, only the faults that the page shows in full (`told_in_full`) have evidence.
    """
    job, recovering = jobs[-1], is_recovering(jobs[-1])
    told = {id(fault) for fault in told_in_full(job.faults, everything=everything)}
    pids = {str(rank): pid for rank, pid in job.pids.items()}
    return {
        "kind": "job",
        "job": _summary(job) | {"running": is_running(job, ranks), "pids": pids},
        "faults": [_fault(one, read(one) if id(one) in told else None, recovering=recovering) for one in job.faults],
        "ranks": [asdict(rank) for rank in ranks],
        "boxes": [_box(box, one) for box, one in kept],
        "jobs": [_summary(one) for one in jobs],
    }


def _box(box: KeptBox, one: BoxSnapshot | None) -> Document:
    return asdict(box) | {
        "readable": one is not None,
        "pid": one.pid if one is not None else None,
        "ended_unix_s": one.at_unix_s if one is not None else None,
        "step": one.step if one is not None else None,
        "how": one.how if one is not None else None,
    }


def _summary(job: Timeline) -> Document:
    return {
        "job_id": job.job_id,
        "folder": job.folder,
        "started_unix_s": job.started_unix_s,
        "newest_unix_s": job.newest_unix_s,
        "ended": _plain(job.ended),
        "managers": job.managers,
        "generation": job.generation,
        "phase": job.phase,
        "faults": len(job.faults),
        "damaged_lines": job.damaged_lines,
        "omitted": job.omitted,
        "self_check": _verdict(job.self_check),
    }


def _verdict(found: CheckVerdict | None) -> Document | None:
    if found is None:
        return None
    return {"outcome": found.outcome.name.lower(), "steps": found.steps, "reason": found.reason, "text": found.text}


def _fault(fault: FaultEntry, record: FaultFile | None, *, recovering: bool) -> Document:
    diagnosis = fault.diagnosis
    return {
        "fault": fault.number,
        "manager": fault.manager,
        "unix_s": fault.unix_s,
        "step": fault.step,
        "title": title(fault),
        "culprits": fault.culprits,
        "outcome": outcome(fault, recovering=recovering),
        "total_ms": fault.total_ms,
        "diagnosis": _plain(diagnosis) | {"took_s": diagnosis.took_s} if diagnosis is not None else None,
        "changes": fault.changes,
        "recoveries": [_plain(one) for one in fault.recoveries],
        "evidence": record.raw if record is not None else None,
        "evidence_file": record.file if record is not None else None,
        "evidence_problem": record.problem if record is not None else None,
    }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def as_text(document: Document) -> str:
    """Return a document as JSON text, on one line."""
    return json.dumps(_finite({"version": VERSION, **document}), allow_nan=False)


def _finite(value: Any, depth: int = 0) -> Any:
    """Replace numbers that are not finite, and values that are nested too deeply, by None.

    JSON has no NaN, and few of its readers accept unlimited nesting.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list | tuple) and depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {key: _finite(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one, depth + 1) for one in value]
    return value
