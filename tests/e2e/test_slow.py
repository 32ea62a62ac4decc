"""A slow rank of a job that uses NCCL, of which nothing is seen but what it tells its profiler plugin."""

import pytest

from tests.e2e.conftest import MakeJob

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

RANKS = 3
SLOW_AT = 300
PLUGIN = "NCCL_PROFILER_PLUGIN"


def test_a_slow_rank_is_found_by_the_times_of_kernels(make_job: MakeJob) -> None:
    job = make_job(RANKS)
    (job.folder / "arrived").write_bytes(bytes(8 * (RANKS + 1)))
    env = {"TASKD_NCCL_TIMES": "on", PLUGIN: None}
    job.start("kernels.py", {"slow": {"rank": 1, "at": SLOW_AT}}, env=env)
    verdict = job.wait(lambda: job.named("verdict"), "a verdict")[0]
    assert (verdict["kind"], verdict["culprits"]) == ("SLOW", [1]), verdict
    assert "Rank 1 needs" in job.output
    (job.folder / "stop").touch()
    assert job.end() == 0
    assert len(job.named("verdict")) == 1


def test_a_profiler_that_the_user_has_chosen_stays(make_job: MakeJob) -> None:
    job = make_job(RANKS)
    env: dict[str, str | None] = {"TASKD_NCCL_TIMES": "on", PLUGIN: "libtheirs.so"}
    job.launch(["--standalone", "--no-python", "printenv", PLUGIN], env=env)
    assert job.end() == 0
    assert job.output.splitlines().count("libtheirs.so") == RANKS
    assert f"{PLUGIN} is set to libtheirs.so, and NCCL loads one profiler only; unset it" in job.output
