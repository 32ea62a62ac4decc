"""What `taskd blackbox --json` prints: one JSON document, whose fields docs/blackbox.md explains.

Rules:

1. Fields may be added at any time. When one changes its meaning or goes, `VERSION` rises.
2. What is not known is null, and so is a number that is not finite: JSON has none.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from taskd.cli.fault_page import outcome, title
from taskd.cli.job_page import Evidenced, is_running
from taskd.runtime.chronicle import Chronicle, FaultEntry
from taskd.runtime.faultfile import FaultRecord
from taskd.runtime.portrait import Portrait

VERSION: Final = 1
Document = dict[str, Any]


def process_document(portrait: Portrait) -> Document:
    """One process."""
    return {"kind": "process", "process": asdict(portrait)}


def job_document(
    jobs: Sequence[Chronicle], ranks: Sequence[Portrait], read: Evidenced, *, everything: bool
) -> Document:
    """The last of these jobs, and a summary of each. Without `everything`, only the newest fault has its evidence."""
    job, running = jobs[-1], is_running(jobs[-1], ranks)
    told = {id(fault) for fault in (job.faults if everything else job.faults[-1:])}
    return {
        "kind": "job",
        "job": _summary(job) | {"running": running, "pids": {str(rank): pid for rank, pid in job.pids.items()}},
        "faults": [_fault(fault, read(fault) if id(fault) in told else None, running=running) for fault in job.faults],
        "ranks": [asdict(rank) for rank in ranks],
        "boxes": [asdict(box) for box in job.boxes],
        "jobs": [_summary(one) for one in jobs],
    }


def _summary(job: Chronicle) -> Document:
    return {
        "job_id": job.job_id,
        "folder": job.folder,
        "started_unix_s": job.started_unix_s,
        "newest_unix_s": job.newest_unix_s,
        "ended": _plain(job.ended),
        "managers": job.managers,
        "generation": job.generation,
        "faults": len(job.faults),
        "damaged_lines": job.damaged_lines,
    }


def _fault(fault: FaultEntry, record: FaultRecord | None, *, running: bool) -> Document:
    verdict = fault.verdict
    return {
        "fault": fault.number,
        "manager": fault.manager,
        "unix_s": fault.unix_s,
        "step": fault.step,
        "title": title(fault),
        "culprits": fault.culprits,
        "outcome": outcome(fault, running=running),
        "total_ms": fault.total_ms,
        "verdict": _plain(verdict) | {"took_s": verdict.took_s} if verdict is not None else None,
        "changes": fault.changes,
        "recoveries": [_plain(one) for one in fault.recoveries],
        "evidence": record.raw if record is not None else None,
        "evidence_file": record.file if record is not None else None,
        "evidence_problem": record.problem if record is not None else None,
    }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def as_text(document: Document) -> str:
    """The JSON text, on one line."""
    return json.dumps(_finite({"version": VERSION, **document}), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
