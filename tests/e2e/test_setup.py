"""Collectives of a script's set-up: a process that takes over a rank receives its predecessor's results."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.thorough import everyday


@pytest.mark.parametrize("extra", everyday([None, "weights"], None))
def test_what_the_ranks_have_shared_stays(make_job: MakeJob, extra: str | None) -> None:
    """Rank 1, rank 0, and rank 1 again are replaced: run id, seed, steps and shards are those of the first start."""
    points = [point("first", 1, 3, "begin"), point("second", 0, 4, "begin"), point("third", 1, 5, "begin")]
    job = make_job(2).start("shared_setup.py", {"steps": 6, "extra": extra, "points": points})
    job.held("first")
    pids = dict(job.pids)
    for number, name in enumerate(["first", "second", "third"], start=1):
        job.kill(name)
        assert not job.recovered(number)["restart"], job.output
    assert job.end() == 0, job.output
    zero, one = job.results()
    assert (zero.pop("shard"), one.pop("shard")) == ({"shard": 10}, {"shard": 11})
    assert zero == one
    assert (zero["steps"], zero["step"], zero["parts"]) == (6, 6, [[0.5, 1.0], [1.5, 1.0]])
    assert zero["pids"] == [pids[0], pids[1]]


def test_what_is_too_large_to_keep(make_job: MakeJob) -> None:
    """It is reported beforehand, with its line. A kill has all start anew."""
    job = make_job(2).start("shared_setup.py", {"steps": 6, "extra": "large", "points": [point("one", 1, 3, "begin")]})
    job.held("one")
    text = "a new process cannot be given what broadcast in the set-up, at "
    job.says(text)
    assert "shared_setup.py:41, gives 400000 bytes, which are too many to keep" in job.output
    job.kill("one")
    restarts(job, text)


def test_a_set_up_that_cannot_be_repeated(make_job: MakeJob) -> None:
    """It has changed since the first start. The new process reports where, and all start anew."""
    points = [point("one", 1, 3, "begin")]
    job = make_job(2).start("shared_setup.py", {"steps": 6, "extra": "changed", "points": points})
    job.kill("one")
    restarts(job, "")
    assert "collective 7 of this new process's set-up is ('all_reduce'" in job.output


def restarts(job: Job, reason: str) -> None:
    record = job.recovered(1)
    assert record["restart"]
    assert reason in record["reason"]
    assert job.end() == 0, job.output
    zero, one = job.results()
    assert zero["name"] == one["name"]
    assert zero["weights"] == one["weights"]


@pytest.mark.parametrize("killed", everyday([0, 1], 0))
def test_groups_made_anew_after_the_training(make_job: MakeJob, killed: int) -> None:
    """A replaced rank meets its peers in new default groups, where old keys mislead stock torch."""
    job = make_job(2).start("again.py", {"steps": 4, "points": [point("one", killed, 3, "begin")]})
    job.kill("one")
    assert not job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert [result["totals"] for result in job.results()] == [[3] * 6] * 2
