"""Run directories as a manager and its agents leave them: a real journal, faults' files by the contract."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec

from taskd.core.diagnosis.evidence import Evidence, Standing, Thread
from taskd.core.diagnosis.facts import flat
from taskd.core.diagnosis.findings import Diagnosis
from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.pacing import Pacing
from taskd.runtime.manager.journal import Journal
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import RankSpan
from tests.core.scenarios import FAULTS, HANG, but

STACK = ("/opt/train.py:120 in forward", "/opt/layers.py:88 in attention", *(f"/opt/f.py:{n} in f" for n in range(20)))
PHASES_MS = {"pause": 20.1, "replace": 31.4, "rebuild": 25.0, "restore": 4.2, "first_step": 15.0, "total": 92.3}


def _slow_rank() -> tuple[Diagnosis, dict[JobRank, Evidence]]:
    """Rank 2 of four becomes slow by a half."""
    pacing = Pacing(Layout({JobRank(rank): NodeRank(rank // 2) for rank in range(4)}), crowded=False)
    for step in range(100):
        for rank in range(4):
            own_s = 0.3 if rank == 2 and step >= 50 else 0.2
            pacing.hear([RankSpan(rank=JobRank(rank), step=step, steps=1, own_s=own_s, waited_s=0.32 - own_s)])
        for found in pacing.found():
            return pacing.diagnosis(found)
    raise AssertionError("it was not found")


class Records:
    """Writes one job's records, as its manager does."""

    def __init__(self, run_dir: Path, job_id: str = "llama") -> None:
        self.journal = Journal(run_dir, job_id)
        self.folder = self.journal.path.parent
        self._job_id = job_id
        self.start()

    def start(self) -> None:
        self.journal.write("manager started", job_id=self._job_id, address="127.0.0.1:9601")

    def processes(self, pids: dict[int, int]) -> None:
        self.journal.write("processes", node_rank=0, pids={str(rank): pid for rank, pid in pids.items()})

    def diagnosis(self, number: int, name: str, *, native: str = "", **changes: Any) -> dict[str, Any]:
        """A fault of `tests/core/scenarios.py`, judged by the diagnosis, or a "slow rank"; rank 2 is the culprit."""
        fault = FAULTS.get(name)
        if fault is None:
            assert name == "slow rank"
            diagnosis, evidence = _slow_rank()
        else:
            seen = {rank: _with_stacks(known, native) for rank, known in fault.evidence(world=4).items()}
            judged = fault.diagnosis(seen, world=4)
            assert judged is not None
            diagnosis, evidence = judged, {JobRank(rank): known for rank, known in seen.items()}
        hang = {key: getattr(HANG, key) for key in ("silent_s", "limit_s", "usual_s", "reason")}
        fields = {
            "fault": number,
            "kind": diagnosis.kind.name,
            "title": diagnosis.kind.value,
            "culprits": diagnosis.culprits,
            "victims": diagnosis.victims,
            "sentence": diagnosis.sentence,
            "facts": [{"rank": fact.rank, "kind": fact.kind.name, "text": fact.text} for fact in diagnosis.facts],
            "step": 41,
            "generation": number - 1,
            "hang": hang if fault is not None and fault.hang else None,
            "since_s": time.monotonic() - 3.25,
            "evidence": f"faults/{number:04}.json",
            **changes,
        }
        self.journal.write("diagnosis", **fields)
        record = {"job_id": self._job_id, "fault": number, "unix_s": time.time(), "monotonic_s": time.monotonic()}
        known = {str(rank): msgspec.to_builtins(flat(one)) for rank, one in evidence.items()}
        self.file(number).parent.mkdir(exist_ok=True)
        self.file(number).write_text(json.dumps({**record, "diagnosis": fields, "evidence": known}))
        return fields

    def recovered(self, number: int | None = None, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "generation": 1,
            "strategy": "recover-in-place",
            "restart": False,
            "reason": "its node lives",
            "causes": {"2": "signal 9 (SIGKILL)"},
            "attempts": 1,
            "step": 41,
            "target_step": 41,
            "detected_s": time.monotonic() - 0.1,
            "phases_ms": PHASES_MS,
            "kept": {"0": 4000, "1": 4001, "3": 4003},
            "replaced": {"2": 4102},
            "warm": {"2": True},
            **({} if number is None else {"fault": number}),
            **changes,
        }
        self.journal.write("recovered", **fields)

    def stopped(self, reason: str = "all ranks have finished", exit_code: int = 0, **changes: Any) -> None:
        self.journal.write("stopped", reason=reason, exit_code=exit_code, **{"fault": {}, **changes})

    def file(self, number: int) -> Path:
        return self.folder / "faults" / f"{number:04}.json"

    def append(self, raw: bytes) -> None:
        with self.journal.path.open("ab") as file:
            file.write(raw)

    def close(self) -> None:
        self.journal.close()


def _with_stacks(known: Evidence, native: str) -> Evidence:
    stack = known.frames.stack or STACK
    threads = (Thread("MainThread", stack), Thread("pin_memory", STACK[:2]))
    return but(known, standing=Standing.TRAINING, stack=stack, threads=threads, native=native)
