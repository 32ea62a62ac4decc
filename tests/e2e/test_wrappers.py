"""DDP wrappers that the training state does not hold: found, moved to each new world, and exact."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS
from tests.e2e.plan import point
from tests.thorough import everyday

STEPS = 10


@pytest.mark.parametrize("shape", everyday([(25, 1), (0.0005, 1), (25, 5)], (25, 5)), ids=str)
def test_a_bare_model_in_the_state(make_job: MakeJob, shape: tuple[float, int]) -> None:
    """Rank 1 and rank 0 are killed. Then every rank has the weights of an undisturbed run.

    The layouts of five wrappers are too large for the first collective of a world.
    """
    bucket_mb, wrappers = shape
    plan = {"steps": STEPS, "bucket_mb": bucket_mb, "wrappers": wrappers}
    undisturbed = make_job(2).start("apart.py", plan, env={"TASKD_PROCESS_ENABLE": None})
    points = [point("first", 1, 3, "begin"), point("second", 0, 6, "backward")]
    job = make_job(2).start("apart.py", {**plan, "points": points})
    for number, name in enumerate(["first", "second"], start=1):
        job.kill(name)
        assert not job.recovered(number)["restart"]
    assert job.end() == 0, job.output
    assert not job.named("attempt failed")
    assert undisturbed.end() == 0, undisturbed.output
    assert job.results() == undisturbed.results()


MADE_IN = (SCRIPTS / "features.py").read_text().splitlines()
LINE = next(number for number, text in enumerate(MADE_IN, 1) if "model = DistributedDataParallel(" in text)
REFUSED = {
    "uncovered": f"features.py:{LINE} has 4 tensors that no part of the TrainState has",
    "powersgd": f"features.py:{LINE} has the communication hook powerSGD_hook with a PowerSGDState",
    "static_graph": f"features.py:{LINE} has static_graph=True",
    "zero": "a ZeroRedundancyOptimizer over all ranks, each of which keeps what no other rank has",
    "fsdp1_around": "has a FullyShardedDataParallel that is no part of the TrainState",
    "remote_calls": "runs beside torch.distributed.rpc (this is its worker 'worker0')",
    "overlapped": f"features.py:{LINE} has the communication hook hook_then_optimizer_wrapper",
    "averaged": "averages its models by a PeriodicModelAverager",
    "fsdp2": "sharded tensors of which each rank keeps what no other rank has",
}


@pytest.mark.parametrize("feature", everyday(REFUSED, "uncovered"))
def test_what_cannot_be_recovered_in_place(make_job: MakeJob, feature: str) -> None:
    """It is reported beforehand, once and with its line. A kill restarts all at once, and the result is stock's."""
    expected = undisturbed(make_job, feature)
    job = make_job(2).start("features.py", {"steps": 6, "feature": feature, "points": [point("one", 1, 3, "begin")]})
    job.held("one")
    job.says(REFUSED[feature])
    job.kill("one")
    record = job.recovered(1)
    assert record["restart"]
    assert REFUSED[feature] in record["reason"]
    assert job.end() == 0, job.output
    assert not job.named("attempt failed")
    assert [result["weights"] for result in job.results()] == expected


@pytest.mark.thorough
def test_a_hook_whose_state_is_a_process_group(make_job: MakeJob) -> None:
    """The group is a handle, and lives on: nothing prevents a recovery in place."""
    expected = undisturbed(make_job, "group_hook")
    points = [point("one", 1, 3, "begin")]
    job = make_job(2).start("features.py", {"steps": 6, "feature": "group_hook", "points": points})
    job.kill("one")
    assert not job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert [result["weights"] for result in job.results()] == expected


@pytest.mark.thorough
def test_a_wrapper_made_anew_at_each_entry(make_job: MakeJob) -> None:
    expected = undisturbed(make_job, "remade")
    points = [point("first", 1, 3, "begin"), point("second", 0, 5, "begin")]
    job = make_job(2).start("features.py", {"steps": 6, "feature": "remade", "points": points})
    for number, name in enumerate(["first", "second"], start=1):
        job.kill(name)
        assert not job.recovered(number)["restart"]
    assert job.end() == 0, job.output
    assert [result["weights"] for result in job.results()] == expected


def test_a_wrapper_that_a_new_process_has_otherwise(make_job: MakeJob) -> None:
    """It is made inside, as by trainers, or in another group. After one attempt all restart, by its line."""
    plan = {"steps": 6, "points": [point("one", 1, 3, "begin")]}
    jobs = [make_job(2).start("features.py", {**plan, "feature": feature}) for feature in ("kept", "elsewhere")]
    for job in jobs:
        job.kill("one")
        record = job.recovered(1)
        assert record["restart"]
        assert "the DistributedDataParallel made at " in record["reason"]
    expected = undisturbed(make_job, "kept")
    for job in jobs:
        assert job.end() == 0, job.output
        assert len(job.named("attempt failed")) == 1
        assert [result["weights"] for result in job.results()] == expected


def undisturbed(make_job: MakeJob, feature: str) -> list[object]:
    """Return the weights of each rank without taskd and without a fault."""
    job = make_job(2).start("features.py", {"steps": 6, "feature": feature}, env={"TASKD_PROCESS_ENABLE": None})
    assert job.end() == 0, job.output
    return [result["weights"] for result in job.results()]
