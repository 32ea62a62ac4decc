"""Record of a job's events: one JSON object a line, for people's tools, and one line of text for people.

Rules:

1. `RUN_DIR/JOB_ID/journal.jsonl` is only appended to, a whole line at a time, and by one living job (`jobfolder.py`).
   When it is full, it becomes `journal.old.jsonl` and replaces the former one. A reader continues there; the two files
   hold more than it reads. An honest job of 100,000 ranks writes 1.6 MB for each recovery, and fills one after a
   thousand.
2. A journal that cannot be written costs the record, not the job: one error, and it stays silent.
"""

import json
import logging
import os
import time
from io import FileIO
from pathlib import Path

from taskd.config.rundir import job_dir
from taskd.core.recovery import Diagnosed, Setback
from taskd.core.recovery.record import FaultRecord, tell
from taskd.core.recovery.strategy import strategy_name
from taskd.runtime.folders.jobfolder import JobFolder
from taskd.runtime.manager.faultfolder import FaultFolder
from taskd.runtime.records.timeline import JOURNAL, OLD_JOURNAL

logger = logging.getLogger(__name__)
_LEAST_BYTES = 128 << 20
_BYTES_PER_RANK = 16 << 10


def most_bytes(ranks: int) -> int:
    """Return the size limit, in bytes, of the journal of a job of `ranks` ranks. Its older part has the same limit."""
    return _LEAST_BYTES + _BYTES_PER_RANK * ranks


class Journal:
    """Writer of one job's journal. `most` is the most bytes that one of its files may have."""

    def __init__(self, run_dir: Path, job_id: str, *, most: int = most_bytes(1)) -> None:
        self._job_id = job_id
        self._most = most
        self.folder = job_dir(run_dir, job_id)
        self.path = self.folder / JOURNAL
        self.mark = ""
        """Mark by which agents recognize the folder; empty if there is none."""
        self._claim: JobFolder | None = None
        self._file: FileIO | None = None
        self._bytes = 0
        self._former_faults = 0
        self._faults: FaultFolder | None = None
        self._told = False
        try:
            self._claim = JobFolder(run_dir, job_id)
            self.folder, self.mark = self._claim.path, self._claim.mark
            self.path = self.folder / JOURNAL
            self._file = self._open(self._claim)
            self._faults = FaultFolder(self._claim.folder)
            self._former_faults = self._faults.newest
        except OSError as error:
            self._fail(error)

    def write(self, event: str, **fields: object) -> None:
        """Append one event. `unix_s` is the wall clock, `monotonic_s` the clock of all other times in the record."""
        if self._file is None:
            return
        line = json.dumps({"event": event, **_now(), **fields}).encode() + b"\n"
        try:
            if self._bytes and self._bytes + len(line) > self._most and self._claim is not None:
                self._file.close()
                self._claim.folder.rename(JOURNAL, OLD_JOURNAL)
                self._file = self._open(self._claim)
            self._file.write(line)
            self._bytes += len(line)
        except OSError as error:
            self._fail(error)

    def _open(self, claim: JobFolder) -> FileIO:
        file = FileIO(claim.folder.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
        self._bytes = os.fstat(file.fileno()).st_size
        return file

    def diagnosis(self, told: Diagnosed) -> None:
        """Append a diagnosis, and write it with the evidence to a file. A later diagnosis on that fault replaces it."""
        number = self._former_faults + told.fault
        fields = {"fault": number, **_diagnosis_fields(told), "evidence": f"faults/{number:04d}.json"}
        self.write("diagnosis", **fields)
        if self._faults is None:
            return
        head = {"job_id": self._job_id, **_now(), "diagnosis": fields}
        try:
            cost = self._faults.write(number, head, told.diagnosis, told.evidence)
        except OSError as error:
            where = self.folder / str(fields["evidence"])
            logger.error("evidence is not kept: %s cannot be written (%s)", where, error.strerror)
            return
        if cost and not self._told:
            self._told = True
            logger.warning("the oldest files of %s/faults are removed for newer ones from here on", self.folder)

    def setback(self, told: Setback, fault: int) -> None:
        """Append an attempt that has failed, with its reason."""
        record = told.record
        self.write(
            "attempt failed",
            fault=fault,
            attempt=record.attempts,
            generation=record.generation,
            strategy=record.decision.strategy.value,
            restart=record.decision.restart,
            reason=told.why,
        )

    def fault(self, number: int) -> int:
        """Return the number of a fault, counted over all managers of this job that have written here."""
        return self._former_faults + number if number else 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._claim is not None:
            self._claim.close()
            self._claim = self._faults = None

    def _fail(self, error: OSError) -> None:
        logger.error("no journal from here on: %s cannot be written (%s); set TASKD_RUN_DIR", self.path, error.strerror)
        self.close()


def _now() -> dict[str, float]:
    return {"unix_s": round(time.time(), 6), "monotonic_s": round(time.monotonic(), 6)}


def _diagnosis_fields(told: Diagnosed) -> dict[str, object]:
    diagnosis, hang = told.diagnosis, told.hang
    silence = (
        {"silent_s": hang.silent_s, "limit_s": hang.limit_s, "usual_s": hang.usual_s, "reason": hang.reason}
        if hang
        else None
    )
    return {
        "kind": diagnosis.kind.name,
        "title": diagnosis.kind.value,
        "culprits": list(diagnosis.culprits),
        "victims": list(diagnosis.victims),
        "sentence": diagnosis.sentence,
        "proven": diagnosis.proven,
        "proof": diagnosis.proof,
        "facts": [{"rank": fact.rank, "kind": fact.kind.name, "text": fact.text} for fact in diagnosis.facts],
        "step": told.step,
        "generation": told.generation,
        "hang": silence,
        "since_s": round(told.since_s, 6),
    }


def as_fields(record: FaultRecord, fault: int) -> dict[str, object]:
    """Return a fault's record as plain JSON values."""
    return {
        "fault": fault,
        "generation": record.generation,
        "strategy": record.decision.strategy.value,
        "restart": record.decision.restart,
        "reason": record.decision.reason,
        "causes": {str(rank): cause.text for rank, cause in sorted(record.causes.items())},
        "attempts": record.attempts,
        "setbacks": record.setbacks,
        "step": record.step,
        "target_step": record.target_step,
        "steps_redone": record.resumption.redone,
        "inexact": {str(rank): text for rank, text in record.resumption.inexact},
        "detected_s": round(record.detected_s, 6),
        "phases_ms": record.phases_ms(),
        "kept": {str(rank): pid for rank, pid in sorted(record.processes.kept.items())},
        "replaced": {str(rank): pid for rank, pid in sorted(record.processes.replaced.items())},
        "warm": {str(rank): warm for rank, warm in sorted(record.processes.warm.items())},
    }


def at_step(step: int) -> str:
    """Return the text on the step at which a fault struck."""
    return f"step {step}" if step >= 0 else "before any step was known"


def as_text(record: FaultRecord, fault: int) -> str:
    """Return a text of one paragraph on a fault and its recovery, with only the known part of the progress."""
    diagnosis, phases = record.diagnosis, record.phases_ms()
    what = diagnosis.sentence if diagnosis is not None else f"{tell(record.causes) or record.decision.reason}."
    tried = "".join(f"{setback}. " for setback in record.setbacks)
    new = ", ".join(
        f"rank {rank} is process {pid} ({'warm' if record.processes.warm.get(rank) else 'cold'})"
        for rank, pid in sorted(record.processes.replaced.items())
    )
    if record.decision.restart:
        done = f"all processes started anew after {phases.get('started', 0.0):.0f} ms"
        then = f"the script resumes by itself, in generation {record.generation}"
    else:
        done = f"recovered in {phases.get('total', 0.0):.0f} ms"
        spans = ", ".join(f"{name} {ms:.0f}" for name, ms in phases.items() if name != "total")
        again = f", {record.resumption.redone} steps are done again" if record.resumption.redone else ""
        then = f"training goes on after step {record.target_step} in generation {record.generation}{again}. ms: {spans}"
    way = strategy_name(record.decision.strategy, record.decision.restart)
    told = "; ".join(f"rank {rank}: {text}" for rank, text in record.resumption.inexact)
    not_exact = f". Not exact: {told}" if told else ""
    return (
        f"fault {fault}, {at_step(record.step)}: {what} {tried}Therefore {done} by {way}: "
        f"{record.decision.reason}. {new or 'No new process'}, {len(record.processes.kept)} kept; {then}{not_exact}"
    )
