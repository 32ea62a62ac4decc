"""Fixtures for whole jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.job import Job
from tests.launch import Launcher

STEPS = 12
"""Number of steps of every resilient training here, so that one run without a fault serves them all."""
MakeJob = Callable[[int], Job]
Results = list[dict[str, Any]]
_undisturbed: dict[int, Results] = {}


@pytest.fixture
def make_job(launcher: Launcher, run_dir: Path) -> MakeJob:
    """Return a function that makes a job of so many ranks. Every call uses a folder of its own."""
    made: list[Job] = []

    def make(ranks: int) -> Job:
        folder = run_dir / str(len(made))
        folder.mkdir()
        made.append(Job(launcher, folder, ranks))
        return made[-1]

    return make


@pytest.fixture
def undisturbed(make_job: MakeJob) -> Callable[[int], Results]:
    """Return a function for the ranks' results under plain torchrun, taskd off and without a fault. It runs once."""

    def results(ranks: int) -> Results:
        if ranks not in _undisturbed:
            job = make_job(ranks).start("train.py", {"steps": STEPS}, env={"TASKD_PROCESS_ENABLE": None})
            assert job.end() == 0, job.output
            _undisturbed[ranks] = job.results()
        return _undisturbed[ranks]

    return results


@pytest.fixture
def same(undisturbed: Callable[[int], Results]) -> Callable[[Job], None]:
    """Return a check that a job's ranks ended exactly like those of an undisturbed one, bit for bit."""

    def check(job: Job) -> None:
        expected = undisturbed(job.ranks)
        for rank, (found, wanted) in enumerate(zip(job.results(), expected, strict=True)):
            for key in ("weights", "at", "random", "step"):
                assert found[key] == wanted[key], f"{key} of rank {rank}"

    return check
