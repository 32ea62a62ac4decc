"""Replica sets that a script states: a contradiction by its sharded tensors ends the job, with both parts named."""

import re
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "stated.py"


def run(launcher: Launcher, run_dir: Path, name: str) -> tuple[int, str]:
    command = ["python", "-m", "taskd", "run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    environment = {"TASKD_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return launcher.run([*command, str(PROGRAM), name], env=environment, cwd=run_dir, timeout_s=120)


@pytest.mark.slow
def test_a_part_that_is_stated_to_be_anothers_ends_the_job(launcher: Launcher, run_dir: Path) -> None:
    """Without the error, the one rank would count as a replica of the other, and receive its part."""
    status, told = run(launcher, run_dir, "all")
    assert status != 0
    assert re.search(r"StatementError: TrainState\(replica_set='all'\) .* part 'dp=\d \w+' .* has 'dp=\d \w+'", told)
    assert "that is a bug of the job, which is not recovered from" in told
    assert "has done step" not in told


@pytest.mark.slow
def test_a_name_for_each_part_is_right(launcher: Launcher, run_dir: Path) -> None:
    status, told = run(launcher, run_dir, "shard RANK")
    assert status == 0, told
    assert set(re.findall(r"rank \d has done step \d", told)) == {"rank 0 has done step 3", "rank 1 has done step 3"}
