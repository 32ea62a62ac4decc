"""`taskd chaos` on a real job: its faults are recovered from, and the weights are those of a job without a fault."""

import os
import signal
from collections.abc import Callable

import pytest

from taskd.runtime.system.processes import stat
from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job, lives
from tests.e2e.plan import point

pytestmark = pytest.mark.slow
Same = Callable[[Job], None]


def play(job: Job, *words: object) -> str:
    """Play a scenario on the job. Return its output."""
    command = ["python", "-m", "taskd", "chaos", *map(str, words), "--agent", str(job.process.pid)]
    status, told = job.launcher.run(command, env=job.environment())
    assert status == 0, told
    return told


def test_a_killed_and_a_stopped_rank_are_replaced(make_job: MakeJob, same: Same) -> None:
    """The first waits at a point of its own, so that the step is known. The second is stopped until taskd ends it."""
    points = [point("kill", 1, 4, "forward"), point("begun", 0, 4, "begin"), point("stop", 0, 8, "begin")]
    soon = "10"  # so few steps give no rhythm
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points}, env={"TASKD_HANG_FIRST_S": soon})
    job.warm()
    victim = job.held("kill")
    job.passed("begun")
    assert f"rank 1 (pid {victim}): SIGKILL\n" in play(job, "kill", 1)
    record = job.recovered(1)
    assert record["replaced"].keys() == {"1"}
    assert record["target_step"] == 3
    stopped = job.held("stop")
    told = play(job, "stop", 0)
    assert f"rank 0 (pid {stopped}): SIGSTOP\n" in told
    assert f"rank 0 (pid {stopped}) has ended: taskd, or somebody else, has replaced it; nothing to undo" in told
    record = job.recovered(2)
    assert record["replaced"].keys() == {"0"}
    diagnoses = [entry["kind"] for entry in job.named("diagnosis")]
    assert diagnoses[-1] == "STOPPED"
    assert job.end() == 0
    same(job)


@pytest.mark.thorough
def test_a_pause_that_is_undone_costs_no_process(make_job: MakeJob, same: Same) -> None:
    """Warm processes have no rank, so that no scenario takes one for a rank."""
    points = [point("pause", 1, 4, "begin"), point("last", 0, 6, "begin")]
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points}, env={"TASKD_HANG_MIN_S": "60"})
    job.warm()
    paused = job.held("pause")
    pids = job.pids
    command = ["python", "-m", "taskd", "chaos", "stop", "1", "--run-dir", str(job.run_dir)]
    playing = job.launcher.start(command, env=job.environment())
    job.wait(lambda: _state(paused) == "T", "rank 1 is stopped")
    os.kill(playing.pid, signal.SIGINT)
    assert playing.wait(30) == 0
    assert f"undone: rank 1 (pid {paused}): SIGCONT" in job.launcher.output(playing)
    for name in ("pause", "last"):
        job.held(name)
        job.release(name)
    assert job.end() == 0
    assert not job.named("recovered")
    assert {result["pid"] for result in job.results()} == set(pids.values())
    assert not any(lives(pid) for pid in pids.values())
    same(job)


def _state(pid: int) -> str:
    known = stat(pid)
    return known.state.value if known is not None and known.state is not None else ""
