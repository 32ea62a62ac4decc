"""Real ranks, real kills: after each the job continues at the same step and ends with an undisturbed run's bits."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.launch import Launcher
from tests.training.job import Job

Results = list[dict[str, Any]]
ONE_BUCKET = {"logs": True}
SEVERAL_BUCKETS = {"bucket_mb": 0.02, "norm": True, "groups": True}
_undisturbed: dict[str, Results] = {}


@pytest.fixture
def run(launcher: Launcher, run_dir: Path) -> Any:
    def run_job(**options: Any) -> tuple[Results, Job]:
        job = Job(launcher, run_dir, **options)
        return job.run(), job

    return run_job


def undisturbed(run: Any, **options: Any) -> Results:
    key = repr(sorted(options.items()))
    if key not in _undisturbed:
        _undisturbed[key], _ = run(**options)
    return _undisturbed[key]


def fault(rank: int, step: int, point: str) -> dict[str, Any]:
    return {"rank": rank, "step": step, "point": point}


def same(results: Results, expected: Results) -> None:
    assert {result["weights"] for result in results} == {expected[0]["weights"]}
    for rank, result in enumerate(results):
        for key in ("layout", "lr", "position", "random"):
            assert result[key] == expected[rank][key], f"{key} of rank {rank}"
        assert not any(result["notes"]), result["notes"]


def random_point(seed: int) -> str:
    return random.Random(seed).choice(
        ["before forward", "after forward", "after backward", "after step", "after commit"]
    )


@pytest.mark.slow
def test_several_buckets(run: Any) -> None:
    """Before, during and after DDP's rebuild of its buckets; then a rank that is a replacement itself; rank 0 twice."""
    faults = [
        fault(1, 1, "after forward"),
        fault(2, 2, "before forward"),
        fault(3, 3, "after step"),
        fault(0, 4, "after commit"),
        fault(0, 10, random_point(1)),
    ]
    results, job = run(**SEVERAL_BUCKETS, faults=faults)
    same(results, undisturbed(run, **SEVERAL_BUCKETS))
    assert [reports[3]["step"] for reports in job.reports[:2]] == [0, 1]
    assert [result["adopted"] for result in results] == [1, 0, 1, 1]
    assert len(results[0]["layout"]) > 1


@pytest.mark.slow
@pytest.mark.thorough
def test_one_bucket(run: Any) -> None:
    """Random points of step 10. Also peers between optimizer step and commit: their step and scheduler are adopted."""
    faults = [fault(2, 10, random_point(2)), fault(3, 13, "before logging"), fault(0, 16, random_point(3))]
    results, job = run(**ONE_BUCKET, faults=faults)
    same(results, undisturbed(run, **ONE_BUCKET))
    assert job.reports[1][0] | {"cause": ""} == {"step": 12, "condition": "stepped", "cause": ""}
    assert len(results[0]["layout"]) == 1


@pytest.mark.slow
@pytest.mark.thorough
def test_find_unused_parameters(run: Any) -> None:
    options = {**SEVERAL_BUCKETS, "ddp": {"find_unused_parameters": True}, "steps": 8, "ranks": 2}
    results, _ = run(**options, faults=[fault(1, 5, "after forward")])
    same(results, undisturbed(run, **options))
    assert results[1]["adopted"] == 0


@pytest.mark.slow
def test_static_graph_is_refused(run: Any, launcher: Launcher, run_dir: Path) -> None:
    job = Job(launcher, run_dir, ranks=2, ddp={"static_graph": True}, faults=[fault(1, 3, "after forward")])
    with pytest.raises(AssertionError, match="ended with"):
        job.run()
    ended = [process for process in job._running.values() if process.wait(20) is not None]
    assert all("static_graph=True cannot take in" in launcher.output(process) for process in ended)
