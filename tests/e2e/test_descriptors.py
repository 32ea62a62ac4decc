"""torchrun under `ulimit -n`: no limit ends it that does not end it without taskd, and the ranks keep theirs."""

import json
import re
import resource
import sys

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS, Job
from tests.e2e.plan import Points, point

OUT = "taskd cannot take part: found a limit of"
NEEDED = re.compile(r"expected at least (\d+)")


def start(job: Job, limit: str, points: Points, *command: str, env: dict[str, str | None] | None = None) -> Job:
    """Start `ulimit …; torchrun …` as from a user's shell, with `env` on top of the job's environment."""
    plan = json.dumps({"folder": str(job.folder), "points": points})
    torchrun = (sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={job.ranks}", "--standalone")
    program = command or (str(SCRIPTS / "hold.py"),)
    shell = ("bash", "-c", f'ulimit {limit} && exec "$@"', "bash")
    job.watch(job.launcher.start([*shell, *torchrun, *program, plan], env={**job.environment(), **(env or {})}))
    return job


def limits(job: Job) -> dict[str, list[int]]:
    """Return the limits in each process of a rank, by rank and restart."""
    return {path.name: json.loads(path.read_text())["descriptors"] for path in job.folder.glob("seen-*")}


def in_torchrun(job: Job) -> tuple[int, int]:
    return resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE)


@pytest.mark.parametrize("standbys", [pytest.param("warm", marks=pytest.mark.slow), "cold"])
def test_a_low_soft_limit_is_raised_for_torchrun_alone(make_job: MakeJob, standbys: str) -> None:
    """A killed rank is recovered. Each rank, including new ones, has the user's limit."""
    job = make_job(2)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    cold: dict[str, str | None] = {"TASKD_STANDBY": "0"} if standbys == "cold" else {}
    start(job, "-S -n 40", [point("one", 1, "run"), point("zero", 0, "run")], env=cold)
    job.held("zero")
    if standbys == "warm":
        job.warm()
    job.kill("one")
    job.recovered(1)
    assert in_torchrun(job) == (hard, hard)
    assert job.end() == 0, job.output
    assert f"({standbys})" in job.output
    assert limits(job) == {f"seen-{start}-{rank}": [40, hard] for start in (0, 1) for rank in (0, 1)}
    assert OUT not in job.output


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough), 8])
@pytest.mark.parametrize("limit", [48, pytest.param(64, marks=pytest.mark.thorough)])
def test_a_low_hard_limit_leaves_torchrun_as_it_is(make_job: MakeJob, ranks: int, limit: int) -> None:
    """One line reports the numbers."""
    job = start(make_job(ranks), f"-n {limit}", [])
    assert job.end() == 0, job.output
    assert job.output.count(f"{OUT} {limit} descriptors, expected at least") == 1, job.output
    assert job.output.count("ends\n") == ranks
    assert not job.events


@pytest.mark.slow  # standbys come ten seconds after the start
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 8])
def test_what_the_line_asks_for_is_enough(make_job: MakeJob, ranks: int) -> None:
    refused = start(make_job(ranks), "-n 48", [])
    assert refused.end() == 0
    asked = NEEDED.search(refused.output)
    assert asked, refused.output
    job = start(make_job(ranks), f"-n {asked[1]}", [point("one", 1, "run"), point("zero", 0, "run")])
    job.held("zero")
    job.warm()
    job.kill("one")
    job.recovered(1)
    assert job.end() == 0, job.output
    assert OUT not in job.output


def test_ranks_that_are_no_python_could_not_get_their_limit_back(make_job: MakeJob) -> None:
    """So the limit is not raised, and torchrun goes on without taskd."""
    job = make_job(1)
    start(job, "-S -n 40", [], "--no-python", "bash", "-c", f"ulimit -S -n > {job.folder}/limit")
    assert job.end() == 0, job.output
    assert (job.folder / "limit").read_text() == "40\n"
    assert job.output.count(OUT) == 1
    assert "it cannot be raised here" in job.output
