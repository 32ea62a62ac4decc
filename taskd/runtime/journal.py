"""The job's record of what happened: one JSON object a line, for people's tools, and one line of text for people.

Rules:

1. `RUN_DIR/JOB_ID/journal.jsonl` is only appended to, a whole line at a time.
2. A journal that cannot be written costs the record, not the job: one error, and it stays silent.
"""

import json
import logging
import time
from io import FileIO
from pathlib import Path

import msgspec

from taskd.config.rundir import job_dir
from taskd.core.phases import Diagnosed, Setback
from taskd.core.record import FaultRecord, tell

logger = logging.getLogger(__name__)


class Journal:
    """Writes one job's journal."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        self._job_id = job_id
        self._directory = job_dir(run_dir, job_id)
        self.path = self._directory / "journal.jsonl"
        self._file: FileIO | None = None
        self._former_faults = 0
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            former = (path.stem for path in self._directory.glob("faults/*.json"))
            self._former_faults = max((int(stem) for stem in former if stem.isdecimal()), default=0)
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
        if self._file is None:
            return
        path = self._directory / str(fields["evidence"])
        evidence = {str(rank): msgspec.to_builtins(known) for rank, known in sorted(told.evidence.items())}
        whole = {"job_id": self._job_id, **_now(), "verdict": fields, "evidence": evidence}
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.with_suffix(".tmp").write_bytes(msgspec.json.encode(whole))
            path.with_suffix(".tmp").replace(path)
        except OSError as error:
            logger.error("evidence is not kept: %s cannot be written (%s)", path, error.strerror)

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


def as_text(record: FaultRecord, fault: int) -> str:
    """A fault and its recovery in one paragraph."""
    verdict = record.verdict
    what = verdict.sentence if verdict is not None else f"{tell(record.causes) or record.reason}."
    phases = ", ".join(f"{name} {ms:.0f}" for name, ms in record.phases_ms().items() if name != "total")
    total = record.phases_ms().get("total", 0.0)
    new = ", ".join(
        f"rank {rank} is process {pid} ({'warm' if record.warm.get(rank) else 'cold'})"
        for rank, pid in sorted(record.replaced.items())
    )
    tried = "".join(f"{setback}. " for setback in record.setbacks)
    return (
        f"fault {fault}, step {record.step}: {what} {tried}Therefore recovered in {total:.0f} ms by "
        f"{record.strategy.value}: {record.reason}. {new or 'No new process'}, {len(record.kept)} kept; training "
        f"goes on after step {record.target_step} in generation {record.generation}. ms: {phases}"
    )
