"""The job's record of what happened: one JSON object a line, for people's tools, and one line of text for people.

Rules:

1. `RUN_DIR/JOB_ID/journal.jsonl` is only appended to, a whole line at a time, and by one living job (`jobfolder.py`).
2. A journal that cannot be written costs the record, not the job: one error, and it stays silent.
"""

import json
import logging
import os
import time
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

import msgspec

from taskd.config.rundir import job_dir
from taskd.core.phases import Diagnosed, Setback
from taskd.core.record import FaultRecord, tell
from taskd.runtime.jobfolder import JobFolder
from taskd.runtime.ownfolder import OwnFolder

logger = logging.getLogger(__name__)
_MOST_DIGITS = 9
"""Of a fault's number."""


class Journal:
    """Writes one job's journal."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        self._job_id = job_id
        self.folder = job_dir(run_dir, job_id)
        self.path = self.folder / "journal.jsonl"
        self.mark = ""
        """By which agents know the folder; empty if there is none."""
        self._claim: JobFolder | None = None
        self._file: FileIO | None = None
        self._former_faults = 0
        try:
            self._claim = JobFolder(run_dir, job_id)
            self.folder, self.mark = self._claim.path, self._claim.mark
            self.path = self.folder / "journal.jsonl"
            self._file = FileIO(self._claim.folder.open(self.path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
            self._former_faults = self._count_faults(self._claim)
        except OSError as error:
            self._fail(error)

    def write(self, event: str, **fields: object) -> None:
        """Append one event. `unix_s` is the wall clock, `monotonic_s` the clock of all other times in the record."""
        if self._file is None:
            return
        entry = {"event": event, **_now(), **fields}
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            self._fail(error)

    def verdict(self, told: Diagnosed) -> None:
        """Append a verdict, and put it with the evidence into a file; a later verdict on that fault replaces it."""
        number = self._former_faults + told.fault
        fields = {"fault": number, **_verdict_fields(told), "evidence": f"faults/{number:04d}.json"}
        self.write("verdict", **fields)
        if self._claim is None:
            return
        evidence = {str(rank): msgspec.to_builtins(known) for rank, known in sorted(told.evidence.items())}
        whole = {"job_id": self._job_id, **_now(), "verdict": fields, "evidence": evidence}
        try:
            with closing(OwnFolder(self.folder / "faults", self._claim.folder)) as faults:
                faults.write(f"{number:04d}.json", msgspec.json.encode(whole))
        except OSError as error:
            where = self.folder / str(fields["evidence"])
            logger.error("evidence is not kept: %s cannot be written (%s)", where, error.strerror)

    def setback(self, told: Setback, fault: int) -> None:
        """Append an attempt that has failed, with its reason."""
        record = told.record
        self.write(
            "attempt failed",
            fault=fault,
            attempt=record.attempts,
            generation=record.generation,
            strategy=record.strategy.value,
            restart=record.restart,
            reason=told.why,
        )

    def fault(self, number: int) -> int:
        """The number of a fault over all managers of this job that have written here."""
        return self._former_faults + number if number else 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _count_faults(self, claim: JobFolder) -> int:
        """Those of earlier managers."""
        with (
            suppress(FileNotFoundError),
            closing(OwnFolder(self.folder / "faults", claim.folder, make=False)) as faults,
        ):
            stems = (name.removesuffix(".json") for name in faults.names())
            return max((int(stem) for stem in stems if stem.isdecimal() and len(stem) <= _MOST_DIGITS), default=0)
        return 0

    def _fail(self, error: OSError) -> None:
        logger.error("no journal from here on: %s cannot be written (%s); set TASKD_RUN_DIR", self.path, error.strerror)
        self.close()


def _now() -> dict[str, float]:
    return {"unix_s": round(time.time(), 6), "monotonic_s": round(time.monotonic(), 6)}


def _verdict_fields(told: Diagnosed) -> dict[str, object]:
    verdict, hang = told.verdict, told.hang
    silence = (
        {"silent_s": hang.silent_s, "limit_s": hang.limit_s, "usual_s": hang.usual_s, "reason": hang.reason}
        if hang
        else None
    )
    return {
        "kind": verdict.kind.name,
        "title": verdict.kind.value,
        "culprits": list(verdict.culprits),
        "victims": list(verdict.victims),
        "sentence": verdict.sentence,
        "proven": verdict.proven,
        "proof": verdict.proof,
        "facts": [{"rank": fact.rank, "kind": fact.kind.name, "text": fact.text} for fact in verdict.facts],
        "step": told.step,
        "generation": told.generation,
        "hang": silence,
        "since_s": round(told.since_s, 6),
    }


def as_fields(record: FaultRecord, fault: int) -> dict[str, object]:
    """A fault's record as plain JSON values."""
    return {
        "fault": fault,
        "generation": record.generation,
        "strategy": record.strategy.value,
        "restart": record.restart,
        "reason": record.reason,
        "causes": {str(rank): cause for rank, cause in sorted(record.causes.items())},
        "attempts": record.attempts,
        "setbacks": record.setbacks,
        "step": record.step,
        "target_step": record.target_step,
        "detected_s": round(record.detected_s, 6),
        "phases_ms": record.phases_ms(),
        "kept": {str(rank): pid for rank, pid in sorted(record.kept.items())},
        "replaced": {str(rank): pid for rank, pid in sorted(record.replaced.items())},
        "warm": {str(rank): warm for rank, warm in sorted(record.warm.items())},
    }


def at_step(step: int) -> str:
    """When a fault struck."""
    return f"step {step}" if step >= 0 else "before any step was known"


def as_text(record: FaultRecord, fault: int) -> str:
    """A fault and its recovery in one paragraph, with what is known of the progress and no more."""
    verdict, phases = record.verdict, record.phases_ms()
    what = verdict.sentence if verdict is not None else f"{tell(record.causes) or record.reason}."
    tried = "".join(f"{setback}. " for setback in record.setbacks)
    new = ", ".join(
        f"rank {rank} is process {pid} ({'warm' if record.warm.get(rank) else 'cold'})"
        for rank, pid in sorted(record.replaced.items())
    )
    if record.restart:
        done = f"all processes started anew after {phases.get('started', 0.0):.0f} ms"
        then = f"the script resumes by itself, in generation {record.generation}"
    else:
        done = f"recovered in {phases.get('total', 0.0):.0f} ms"
        spans = ", ".join(f"{name} {ms:.0f}" for name, ms in phases.items() if name != "total")
        then = f"training goes on after step {record.target_step} in generation {record.generation}. ms: {spans}"
    return (
        f"fault {fault}, {at_step(record.step)}: {what} {tried}Therefore {done} by {record.strategy.value}: "
        f"{record.reason}. {new or 'No new process'}, {len(record.kept)} kept; {then}"
    )
