"""A /dev/shm that is too small or read-only: one warning, and a rank is replaced by a warm process as elsewhere."""

import json
import sys

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS
from tests.e2e.plan import point


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "found"), [("size=1m", "found 1.0 MB free, expected 17 MB"), ("ro", "found it read-only")]
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
