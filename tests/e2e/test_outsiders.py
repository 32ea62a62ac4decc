"""Groups with processes that torchrun did not start, and stores of the script's own, are left alone."""

import socket

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS


@pytest.mark.parametrize(("kind", "own"), [("default", 2), ("beside", 1)])
def test_a_group_with_an_outsider(make_job: MakeJob, kind: str, own: int) -> None:
    job = make_job(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    script = str(SCRIPTS / "outsider.py")
    outsider = job.launcher.start(["python", script, kind, "0", port], env={**job.environment()})
    job.launch(["--standalone", script, kind, "1", port])
    assert job.end() == 0, job.output
    assert outsider.wait(30) == 0
    assert "rank 1: 3 of 2" in job.output
    assert f"rank 1 own: {own}" in job.output
    assert "rank 0: 3 of 2" in job.launcher.output(outsider)
