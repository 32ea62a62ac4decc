"""Damaged and hostile journals and files of faults against their reader: `python -m tests.fuzz.journals SEED COUNT`.

Rules:

1. A journal is read, its damaged lines counted, or refused with a `RecordError`. Any other error is raised, with the
   seed and the turn that led to it.
2. A page of it is printable and keeps to its lines; its document is JSON.
3. Entries are of two kinds: those of a real job, damaged as files are, and any that their types allow or just exclude.
"""

import io
import json
import os
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import inspect

from taskd.cli.documents import as_text, job_document
from taskd.cli.job_page import job_page
from taskd.cli.tables import page
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.facts import FACTS
from taskd.errors import RecordError
from taskd.runtime.records.entries import DiagnosisEntry, DirectiveEntry, Ended, Processes, RecoveryEntry
from taskd.runtime.records.faultfile import read_evidence
from taskd.runtime.records.timeline import Timeline, read_job
from tests.fuzz.record_damage import damage
from tests.fuzz.shapes import STRANGE_FLOATS, STRANGE_NUMBERS, STRANGE_TEXTS, anything

_TYPES: Final = {
    "diagnosis": inspect.type_info(DiagnosisEntry),
    "recovered": inspect.type_info(RecoveryEntry),
    "stopped": inspect.type_info(Ended),
    "processes": inspect.type_info(Processes),
    "directive": inspect.type_info(DirectiveEntry),
}
_RANK: Final = inspect.type_info(Evidence)
_POOL: Final = 300
"""Number of lines from which journals are made. Each turn replaces one by a new line, which is expensive."""
_EVIDENCE: Final = 8
_PAGES: Final = 32
"""One journal in `_EVIDENCE` is read with faults' files, one in `_PAGES` as a page. Either takes as long as twenty."""
_TOLD: Final = 2
"""One journal in `_TOLD` is described in full. A page only lays that out."""
_ODD: Final[tuple[Any, ...]] = (
    *STRANGE_NUMBERS,
    *STRANGE_FLOATS,
    *STRANGE_TEXTS,
    None,
    True,
    [],
    {},
    [[]],
    "\nrank 0 forged",
    "9" * 4400,
)
_REAL: Final[tuple[dict[str, Any], ...]] = (
    {"event": "manager started", "job_id": "llama", "address": "127.0.0.1:9601"},
    {"event": "processes", "node_rank": 0, "pids": {"0": 4000, "1": 4001}},
    {"event": "directive", "generation": 0, "order": "run", "phase": "running", "reason": "all nodes are there"},
    {
        "event": "diagnosis", "fault": 1, "kind": "STOPPED", "title": "stopped", "culprits": [1], "victims": [0],
        "sentence": "Rank 1 is stopped. Why: SIGSTOP.", "facts": [{"rank": 1, "kind": "STOPPED", "text": "stopped"}],
        "hang": {"silent_s": 3.0, "limit_s": 2.0, "usual_s": 0.1, "reason": "silence"}, "step": 41, "generation": 0,
        "since_s": 100.0, "evidence": "faults/0001.json", "proven": True, "proof": "its state",
    },
    {
        "event": "recovered", "fault": 1, "generation": 1, "strategy": "recover-in-place", "reason": "its node lives",
        "causes": {"1": "signal 9 (SIGKILL)"}, "attempts": 1, "setbacks": ["a newcomer died"], "step": 41,
        "target_step": 41, "detected_s": 100.1, "phases_ms": {"pause": 20.1, "total": 92.3}, "kept": {"0": 4000},
        "replaced": {"1": 4102}, "restart": False,
    },
    {"event": "stopped", "reason": "done", "exit_code": 0, "fault": {"strategy": "exit", "reason": "no restarts"}},
)  # fmt: skip


_DIAGNOSIS: Final = 3
"""Index of the entry that names a fault's file."""


def _real(dice: random.Random) -> dict[str, Any]:
    unix_s = 1.7e9 + dice.randrange(1000)
    entry = {**dice.choice(_REAL), "unix_s": unix_s, "monotonic_s": 100.0 + dice.randrange(100)}
    return {**entry, "fault": dice.randrange(1, 9)} if entry.get("fault") == 1 and dice.random() < 0.7 else entry


def _odd(entry: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return the entry with one changed value, at any depth."""
    entry = dict(entry)
    numbers = [name for name, value in entry.items() if isinstance(value, int | float)]
    key = dice.choice(numbers if numbers and dice.random() < 0.5 else list(entry))
    value = entry[key]
    if isinstance(value, dict) and value and dice.random() < 0.7:
        entry[key] = _odd(value, dice)
    elif isinstance(value, list) and value and dice.random() < 0.7:
        entry[key] = [
            _odd(value[0], dice) if isinstance(value[0], dict) and value[0] else dice.choice(_ODD),
            *value[1:],
        ]
    elif isinstance(value, int | float) and dice.random() < 0.7:
        entry[key] = dice.choice((*STRANGE_FLOATS, *STRANGE_NUMBERS))
    elif isinstance(value, str) and dice.random() < 0.5:
        entry[key] = dice.choice(STRANGE_TEXTS) + value
    elif dice.random() < 0.1:
        entry[str(dice.choice(_ODD))] = value
    else:
        entry[key] = dice.choice(_ODD)
    return entry


def _entry(dice: random.Random) -> dict[str, Any]:
    chance = dice.random()
    if chance < 0.4:
        return _real(dice)
    if chance < 0.8:
        entry = _real(dice)
        for _ in range(dice.choice((1, 1, 2, 4))):
            entry = _odd(entry, dice)
        return entry
    event = dice.choice(list(_TYPES))
    return {"event": event, **anything(_TYPES[event], dice)}


def _line(dice: random.Random) -> bytes:
    return json.dumps(_entry(dice)).encode()


def journal(lines: list[bytes], dice: random.Random) -> bytearray:
    """Return some of these lines, whole or damaged."""
    chosen = dice.choices(lines, k=dice.choice((1, 3, 6, 6, 12)))
    content = bytearray(dice.choice((b"\n", b"\n", b"\n", b"", b"\r\n", b"\n\n")).join(chosen) + b"\n")
    if dice.random() < 0.5:
        damage(content, dice)
    return content


def _facts(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as in a fault's file, without the parts of evidence."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        found.update({name: value} if name in FACTS else value)
    return found


def evidence(dice: random.Random) -> bytearray:
    """Return the file of a fault, whole or damaged."""
    ranks = {str(rank): _facts(anything(_RANK, dice)) for rank in range(dice.choice((1, 2)))}
    whole = {
        "evidence": ranks,
        "diagnosis": {"since_s": dice.choice((100.0, None, "x"))},
        "monotonic_s": dice.choice(_ODD),
    }
    content = bytearray(json.dumps(whole).encode())
    if dice.random() < 0.3:
        content = content.replace(b": 1,", dice.choice((b": NaN,", b": -Infinity,", b": 1e999,")))
    if dice.random() < 0.6:
        damage(content, dice)
    return content


class _Reader:
    """Reads the job in one folder in every way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counts = {"journals": 0, "whole": 0, "with damaged lines": 0, "refused": 0, "evidence": 0}

    def read(self, turn: int) -> None:
        """Read the job. Raise every error that is not a refusal."""
        self.counts["journals"] += 1
        try:
            job = read_job(self._folder)
        except RecordError:
            self.counts["refused"] += 1
            return
        self.counts["with damaged lines" if job.damaged_lines else "whole"] += 1
        read = partial(read_evidence, self._folder)
        if turn % _EVIDENCE == 0:
            self.counts["evidence"] += sum(bool(known and known.evidence) for known in map(read, job.faults))
            document = as_text(job_document([job], [], [], read, everything=True))
            assert document.isascii()
            json.loads(document, parse_constant=_refuse)
        if turn % _TOLD == 0:
            list(job_page(job, [], [], read, everything=True))
        if turn % _PAGES == 0:
            _show(job, read)


def _show(job: Timeline, read: Any) -> None:
    sink = io.StringIO()
    page(sink, job_page(job, [], [], read, everything=True))
    assert all(char.isprintable() or char == "\n" for char in sink.getvalue())
    assert "\nrank 0 forged" not in sink.getvalue()


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in a document")


def run(seed: int, count: int) -> dict[str, int]:
    """Try so many journals. Return how many were read and refused. Raise any other error, with its place."""
    dice = random.Random(seed)
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared, prefix="taskd-fuzz-") as name:
        folder = Path(name)
        (folder / "faults").mkdir()
        reader = _Reader(folder)
        lines = [_line(dice) for _ in range(_POOL)]
        for turn in range(count):
            lines[dice.randrange(_POOL)] = _line(dice)
            files = {"journal.jsonl": journal(lines, dice)}
            if turn % _EVIDENCE == 0:
                files["journal.jsonl"] += json.dumps(_REAL[_DIAGNOSIS]).encode()
                files["faults/0001.json"] = evidence(dice)
            for path, content in files.items():
                (folder / path).write_bytes(content)
            try:
                reader.read(turn)
            except BaseException:
                print(f"seed {seed}, turn {turn}: {files}", file=sys.stderr)
                raise
    return reader.counts


if __name__ == "__main__":
    began_s = time.monotonic()
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    lasted_s = round(time.monotonic() - began_s, 1)
    print(json.dumps({**found, "seed": int(sys.argv[1]), "lasted_s": lasted_s, "peak_mib": peak_mib}))
