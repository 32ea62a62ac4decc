"""Values that change after the forward pass are exact after a fault. Otherwise all processes start anew."""

from typing import Any

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.thorough import everyday

pytestmark = pytest.mark.slow
STEPS = 9
KILLS = [(1, 4, "backward"), (0, 6, "stepped")]


def played(make_job: MakeJob, how: str, kills: list[tuple[int, int, str]], **plan: Any) -> Job:
    """Run the job, and kill it at these points one after the other."""
    points = [point(f"kill {number}", rank, step, at) for number, (rank, step, at) in enumerate(kills)]
    env = {"TASKD_PROCESS_ENABLE": "on" if kills else None}
    given = {"how": how, "steps": STEPS, "logs": False, "points": points, **plan}
    job = make_job(2).start("carried.py", given, env=env)
    for number, one in enumerate(points, start=1):
        job.kill(one["name"])
        job.recovered(number)
    assert job.end() == 0, job.output
    return job


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("how", everyday(["hidden", "draws"], "hidden"))
def test_it_goes_on_exactly(make_job: MakeJob, how: str, *, logs: bool) -> None:
    """The dead rank's peers have committed its step. With logs they have not, and their own values count."""
    job = played(make_job, how, KILLS, logs=logs)
    assert [one["restart"] for one in job.named("recovered")] == [False, False], job.output
    assert job.results() == played(make_job, how, [], logs=logs).results(), job.output


def test_what_moves_behind_the_backward_pass_starts_anew(make_job: MakeJob) -> None:
    """Nothing shows how far the dead rank had come."""
    job = played(make_job, "counts", KILLS[1:])
    assert "reader of the data changes between the end of the forward pass and the commit" in job.output
    assert [one["restart"] for one in job.named("recovered")] == [True], job.output
    assert job.results() == played(make_job, "counts", []).results(), job.output
