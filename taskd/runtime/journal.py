"""The job's record of what happened: one JSON object a line, for people's tools, and one line of text for people.

Rules:

1. `RUN_DIR/JOB_ID/journal.jsonl` is only appended to, a whole line at a time.
2. A journal that cannot be written costs the record, not the job: one error, and it stays silent.
"""

import json
import logging
import re
import time
from io import FileIO
from pathlib import Path

from taskd.core.record import FaultRecord

logger = logging.getLogger(__name__)


class Journal:
    """Writes one job's journal."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        self.path = run_dir / re.sub(r"[^\w.-]", "_", job_id) / "journal.jsonl"
        self._file: FileIO | None = None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            self._fail(error)

    def write(self, event: str, **fields: object) -> None:
        """Append one event. `unix_s` is the wall clock, `monotonic_s` the clock of all other times in the record."""
        if self._file is None:
            return
        entry = {"event": event, "unix_s": round(time.time(), 6), "monotonic_s": round(time.monotonic(), 6), **fields}
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        logger.error("no journal from here on: %s cannot be written (%s); set TASKD_RUN_DIR", self.path, error.strerror)
        self.close()


def as_fields(record: FaultRecord) -> dict[str, object]:
    """A fault's record as plain JSON values."""
    return {
        "generation": record.generation,
        "strategy": record.strategy.value,
        "restart": record.restart,
        "reason": record.reason,
        "causes": {str(rank): cause for rank, cause in sorted(record.causes.items())},
        "attempts": record.attempts,
        "step": record.step,
        "target_step": record.target_step,
        "detected_s": round(record.detected_s, 6),
        "phases_ms": record.phases_ms(),
        "kept": {str(rank): pid for rank, pid in sorted(record.kept.items())},
        "replaced": {str(rank): pid for rank, pid in sorted(record.replaced.items())},
        "warm": {str(rank): warm for rank, warm in sorted(record.warm.items())},
    }


def as_text(record: FaultRecord) -> str:
    """A recovery in one paragraph."""
    what = "; ".join(f"rank {rank}: {cause or 'unknown cause'}" for rank, cause in sorted(record.causes.items()))
    phases = ", ".join(f"{name} {ms:.0f}" for name, ms in record.phases_ms().items() if name != "total")
    total = record.phases_ms().get("total", 0.0)
    new = ", ".join(
        f"rank {rank} is process {pid} ({'warm' if record.warm.get(rank) else 'cold'})"
        for rank, pid in sorted(record.replaced.items())
    )
    return (
        f"recovered in {total:.0f} ms, generation {record.generation}, step {record.target_step} [{what}] "
        f"by {record.strategy.value}: {record.reason}. {new or 'no new process'}, {len(record.kept)} kept. ms: {phases}"
    )
