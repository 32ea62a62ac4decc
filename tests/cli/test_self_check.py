"""The verdict of a job's self-check, as `taskd blackbox` and `taskd doctor RUN_DIR` show it."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from taskd.runtime.records.selfcheck import SELF_CHECK, CheckOutcome, CheckVerdict
from tests.cli.jobs import Records
from tests.launch import Launcher
from tests.shim.armed import plain

EXACT = CheckVerdict(outcome=CheckOutcome.EXACT, steps=(3,))
INEXACT = CheckVerdict(
    outcome=CheckOutcome.NOT_EXACT, steps=(3,), reason="train.py:31: done again, it differs in the batch"
)


def write(job: Records, verdict: CheckVerdict) -> Path:
    """Write a verdict where the ranks of a job do."""
    path = job.folder / SELF_CHECK
    path.write_bytes(msgspec.json.encode(verdict))
    return path


def doctor(launcher: Launcher, run_dir: Path) -> dict[str, str]:
    """Return the finding of `taskd doctor RUN_DIR --json` about the self-check."""
    _, output = launcher.run(["python", "-m", "taskd", "doctor", str(run_dir), "--json"], env=plain())
    lines = json.loads(output.strip().splitlines()[-1])["findings"]
    return next(line for line in lines if line["subject"] == "self-check")


def test_exact(records, blackbox, document, run_dir, launcher) -> None:
    write(records(), EXACT)
    assert "exact: proven at step 3" in blackbox(run_dir)[1]
    shown = document(run_dir)["job"]["self_check"]
    assert shown == {"outcome": "exact", "steps": [3], "reason": "", "text": "exact: proven at step 3"}
    line = doctor(launcher, run_dir)
    assert "exact: proven at step 3" in line["found"]
    assert not line["remedy"]


def test_not_exact(records, blackbox, run_dir, launcher) -> None:
    write(records(), INEXACT)
    assert "not exact: train.py:31: done again" in blackbox(run_dir)[1]
    line = doctor(launcher, run_dir)
    assert "train.py:31" in line["found"]
    assert "exactness.md" in line["remedy"]


def test_a_verdict_of_an_earlier_start_is_not_shown(records, document, run_dir, launcher) -> None:
    os.utime(write(records(), EXACT), (1.0, 1.0))
    assert document(run_dir)["job"]["self_check"] is None
    assert "no verdict" in doctor(launcher, run_dir)["found"]


@pytest.mark.parametrize("damage", ["pipe", "text", "nested"])
def test_a_damaged_file_is_no_verdict(damage, records, document, run_dir) -> None:
    path = write(records(), EXACT)
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"{" if damage == "text" else b"[" * 100_000)
    assert document(run_dir)["job"]["self_check"] is None


def test_a_folder_without_a_job_is_named(run_dir, launcher) -> None:
    line = doctor(launcher, run_dir)
    assert "holds no job" in line["remedy"]
