"""A directory for temporary files with a path as long as a cluster's scratch, too long for a socket."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.config.rundir import SHORT
from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point

DEPTH = 90
NAME = f"scratch-{os.getpid()}"


@pytest.fixture
def records() -> Iterator[Path]:
    """Yield the expected folder of the job's records, which no setting names."""
    folder = SHORT / f"taskd-{os.getuid()}" / NAME
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_job_recovers_there(make_job: MakeJob, records: Path) -> None:
    job = make_job(2)
    deep = job.folder / ("x" * max(1, DEPTH - len(str(job.folder))))
    deep.mkdir()
    env: dict[str, str | None] = {
        "TMPDIR": str(deep),
        "TASKD_RUN_DIR": None,
        "XDG_RUNTIME_DIR": None,
        "TASKD_JOB_ID": NAME,
        "TASKD_STANDBY": "0",
    }
    job.start("train.py", {"steps": 5, "points": [point("one", 1, 3, "begin")]}, env=env)
    job.kill("one")
    job.says("recovered in ")
    told = job.launcher.run(["python", "-m", "taskd", "blackbox", "--json"], env={**job.environment(), **env})
    assert job.end() == 0, job.output
    assert (records / "journal.jsonl").is_file()
    assert not list(deep.glob("taskd-*"))
    assert told[0] == 0, told[1]
    assert str(records) in told[1]
