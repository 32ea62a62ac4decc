"""Jobs that use NCCL, which only events for its profiler plugin show. NCCL is played (`tests/nccl.py`)."""

import os

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job

pytestmark = [pytest.mark.slow]

RANKS = 3
VICTIM = 1
AT = 300
PLUGIN = "NCCL_PROFILER_PLUGIN"


def play(make_job: MakeJob, fault: str, **more: str) -> Job:
    job = make_job(RANKS)
    (job.folder / "arrived").write_bytes(bytes(8 * (RANKS + 1)))
    os.mkfifo(job.folder / "device")
    plan = {"fault": fault, "victim": VICTIM, "at": AT}
    return job.start("kernels.py", plan, env={"TASKD_NCCL_TIMES": "on", PLUGIN: None, **more})


def end(job: Job) -> None:
    (job.folder / "stop").touch()
    assert job.end() == 0
    assert len(job.named("diagnosis")) == 1


@pytest.mark.thorough
def test_a_slow_rank(make_job: MakeJob) -> None:
    job = play(make_job, "slow")
    diagnosis = job.wait(lambda: job.named("diagnosis"), "a diagnosis")[0]
    assert (diagnosis["kind"], diagnosis["culprits"]) == ("SLOW", [VICTIM]), diagnosis
    assert "Rank 1 needs" in job.output
    end(job)


@pytest.mark.thorough
def test_a_device_that_does_not_come_to_the_kernel_of_the_others(make_job: MakeJob) -> None:
    job = play(make_job, "device", TASKD_HANG_RECOVERY="off")
    diagnosis = job.wait(lambda: job.named("diagnosis"), "a diagnosis")[0]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["victims"]) == ("DEVICE_BEHIND", [VICTIM], [0, 2]), (
        diagnosis
    )
    assert "on which no kernel of NCCL runs" in job.output
    (job.folder / "device").write_text("go on")
    end(job)


def test_a_profiler_that_the_user_has_chosen_stays(make_job: MakeJob) -> None:
    job = make_job(RANKS)
    env: dict[str, str | None] = {"TASKD_NCCL_TIMES": "on", PLUGIN: "libtheirs.so"}
    job.launch(["--standalone", "--no-python", "printenv", PLUGIN], env=env)
    assert job.end() == 0
    assert job.output.splitlines().count("libtheirs.so") == RANKS
    assert f"{PLUGIN} is set to libtheirs.so, and NCCL loads one profiler only; unset it" in job.output
