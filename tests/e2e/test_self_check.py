"""A job determines in its third step whether it can go on exactly, without any change to its result."""

import re
from typing import Any

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS, Job
from tests.e2e.plan import point
from tests.thorough import everyday

COLD: dict[str, str | None] = {"TASKD_STANDBY": "0"}
STEPS, LONG = 8, 70
PROVEN = "self-check: exact: proven at step "
SHAPES: dict[str, str] = {
    "plain": f"{PROVEN}3",
    "scaler": f"{PROVEN}3",
    "closure": f"{PROVEN}3",
    "lbfgs": f"{PROVEN}3",
    "skips": f"{PROVEN}4",
    "overflows": f"{PROVEN}6",
    "never": "self-check: unproven: no optimizer has made a step that could be watched",
    "never, for long": "self-check: unproven: rank R: no optimizer has made a step that could be watched",
    "empties": "self-check: unproven: rank R: {script}:N empties {folder}/log-R each time it is entered",
}
CHANGED = ("counter", "raises", "swallows")
"""Shapes that the check itself changes. Their jobs begin anew."""
TAKEN = {"number": "progress.seen", "generator": "noise"}
"""Shapes with values outside of the state that are taken into it."""


def plan(how: str) -> dict[str, Any]:
    return {"how": how, "steps": LONG if how.endswith("long") else STEPS}


def results(make_job: MakeJob, how: str) -> list[dict[str, Any]]:
    """Return the results of the shape under plain torchrun."""
    job = make_job(2).start("self_checked.py", plan(how), env={"TASKD_PROCESS_ENABLE": None})
    assert job.end() == 0, job.output
    return job.results()


def weights(found: list[dict[str, Any]]) -> list[str]:
    """Return the weights alone: a replaced rank has the running statistics of another one."""
    return [one["weights"] for one in found]


def entered(job: Job) -> list[str]:
    return sorted(line for line in job.output.splitlines() if " enters at " in line)


@pytest.mark.parametrize("how", everyday(SHAPES, "plain"))
def test_the_check_changes_nothing(make_job: MakeJob, how: str) -> None:
    job = make_job(2).start("self_checked.py", plan(how), env=COLD)
    assert job.end() == 0, job.output
    assert job.results() == results(make_job, how), job.output
    script = SCRIPTS / "self_checked.py"
    said = re.sub(rf"{script}:\d+", f"{script}:N", job.output)
    said = re.sub(r"unproven: rank [01]:", "unproven: rank R:", said)  # the first rank to object is named
    if how == "empties":
        said = re.sub(r"log-[01]", "log-R", said)
    assert SHAPES[how].format(script=script, folder=job.folder) in said
    proven = SHAPES[how].partition(PROVEN)[2]
    again = [int(proven) - 1] if proven else []
    assert entered(job) == sorted(f"rank {rank} enters at {step}" for rank in range(2) for step in [0, *again])
    assert not job.named("recovered")


@pytest.mark.parametrize("how", everyday(CHANGED, "counter"))
def test_a_job_that_the_check_has_changed_begins_anew(make_job: MakeJob, how: str) -> None:
    """It ends as under plain torchrun, with all restarts left, and no process is kept at a fault."""
    points = [point("killed", 1, 5, "begin")] if how == "counter" else []
    env = COLD | {"TASKD_MAX_RESTARTS": "1"}
    job = make_job(2).start("self_checked.py", {"how": how, "steps": STEPS, "points": points}, env=env)
    if points:
        job.kill("killed")
    assert job.end() == 0, job.output
    assert job.results() == results(make_job, how), job.output
    assert "the self-check has changed the training, which is not exact: " in job.output
    assert "at a fault all processes start anew" in job.output
    records = job.named("recovered")
    assert len(records) == 1 + len(points), job.output
    assert all(record["restart"] for record in records)
    comes_again = how != "swallows"
    assert job.output.count("is done twice") == comes_again, "it is known from then on"


@pytest.mark.parametrize("how", everyday(TAKEN, "number"))
def test_what_is_taken_in_goes_on(make_job: MakeJob, how: str) -> None:
    """It goes on in a kept process, and in a new one, which receives it from a peer. The step is proven with it."""
    points = [point("killed", 1, 5, "begin")]
    job = make_job(2).start("self_checked.py", {"how": how, "steps": STEPS, "points": points}, env=COLD)
    job.kill("killed")
    assert not job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert weights(job.results()) == weights(results(make_job, how)), job.output
    assert job.output.count(f"{TAKEN[how]} is changed by the training") == 1, job.output
    assert "taskd keeps it with the state from now on" in job.output
    assert PROVEN in job.output


AHEAD = {"before the verdict": (1, [1]), "behind it": (5, [1]), "all at once": (6, [0, 1])}
"""Step and ranks of a fault in a script that fetches a batch ahead."""


@pytest.mark.parametrize("when", everyday(AHEAD, "all at once"))
def test_a_batch_that_is_fetched_ahead_is_handed_out_again(make_job: MakeJob, when: str) -> None:
    """The step is proven with it, in one more try. Earlier copies are not used, since their position was not known."""
    step, ranks = AHEAD[when]
    points = [point(f"killed-{rank}", rank, step, "begin") for rank in ranks]
    job = make_job(2).start("self_checked.py", {"how": "ahead", "steps": STEPS, "points": points}, env=COLD)
    job.kill(*(f"killed-{rank}" for rank in ranks))
    assert job.end() == 0, job.output
    record = job.recovered(1)
    assert weights(job.results()) == weights(results(make_job, "ahead")), job.output
    if when == "before the verdict":
        assert record["restart"]
    else:
        assert "a batch of 'loader' is fetched ahead, and handed out again" in job.output
        assert not record["restart"]


@pytest.mark.thorough
def test_random_numbers_of_nobody_are_not_exact(make_job: MakeJob) -> None:
    job = make_job(2).start("self_checked.py", {"how": "unseeded", "steps": STEPS}, env=COLD)
    assert job.end() == 0, job.output
    assert "the self-check has changed the training, which is not exact: " in job.output
    assert len(job.named("recovered")) == 1


@pytest.mark.parametrize("who", everyday([0, 1], 1))
def test_a_fault_in_the_step_that_is_done_twice(make_job: MakeJob, who: int) -> None:
    """It is recovered from as any other. Nothing is proven then."""
    points = [point("first", who, 2, "begin"), point("again", who, 2, "begin")]
    job = make_job(2).start("self_checked.py", {"how": "plain", "steps": STEPS, "points": points}, env=COLD)
    job.held("first")
    job.release("first")
    job.kill("again")
    assert job.end() == 0, job.output
    assert weights(job.results()) == weights(results(make_job, "plain")), job.output
    assert len(job.named("recovered")) == 1


@pytest.mark.thorough
def test_a_verdict_is_not_proven_again(make_job: MakeJob) -> None:
    """Processes that start anew in the same job use it."""
    points = [point("all", rank, 5, "begin") | {"name": f"all-{rank}"} for rank in range(2)]
    job = make_job(2).start("self_checked.py", {"how": "plain", "steps": STEPS, "points": points}, env=COLD)
    job.kill("all-0", "all-1")
    assert job.end() == 0, job.output
    assert job.output.count(PROVEN) == 1
    assert job.results() == results(make_job, "plain"), job.output
