"""A /dev/shm that is too small or read-only, and segments in it of a dead rank."""

import json
import sys
import uuid
from pathlib import Path

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS
from tests.e2e.plan import point
from tests.thorough import everyday

SHARED = Path("/dev/shm")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("ro", "found it read-only"),
        pytest.param("size=1m", "found 1.0 MB free, expected 17 MB", marks=pytest.mark.thorough),
    ],
)
def test_one_warning_and_warm_processes(make_job: MakeJob, option: str, found: str) -> None:
    job = make_job(2)
    plan = json.dumps({"folder": str(job.folder), "points": [point("one", 1, "run"), point("zero", 0, "run")]})
    mount = 'mount -t tmpfs -o "$1" tmpfs /dev/shm && shift && exec "$@"'
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command = ["unshare", "-m", "sh", "-c", mount, "sh", option, *torchrun, str(SCRIPTS / "hold.py"), plan]
    job.watch(job.launcher.start(command, env=job.environment()))
    job.held("zero")
    job.warm()
    job.kill("one")
    job.recovered(1)
    assert job.end() == 0, job.output
    assert "(warm)" in job.output
    assert job.output.count("/dev/shm") == 1
    assert f"/dev/shm: {found}" in job.output


@pytest.mark.parametrize("enabled", everyday(["on", None], "on"))
def test_a_segment_with_a_fixed_name_is_removed_behind_a_dead_rank(make_job: MakeJob, enabled: str | None) -> None:
    """As under stock torchrun, which starts all ranks again, the name is free, and nothing is left in the end."""
    name = f"taskd_test_{uuid.uuid4().hex}"
    plan = {"steps": 6, "name": name}
    options, env = ("--standalone", "--max_restarts=3"), {"TASKD_PROCESS_ENABLE": enabled}
    job = make_job(2).start("segments.py", plan, options=options, env=env)
    assert job.end() == 0, job.output
    assert [result["step"] for result in job.results()] == [6, 6]
    assert (job.folder / "killed").exists()
    assert list(SHARED.glob(f"{name}*")) == []
    if enabled:
        assert not job.recovered(1)["restart"]
