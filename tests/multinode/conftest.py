"""Fixtures for jobs on several nodes. Without root or the tools for nodes, their tests skip with the reason."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.job import Job
from tests.launch import Launcher
from tests.multinode.job import NodesJob
from tests.nodes import Nodes
from tests.nodes_or_skip import nodes_or_skip

STEPS = 12
"""Number of steps of every resilient training here, so that one run without a fault serves all of one world size."""
MakeJob = Callable[..., NodesJob]
Results = list[dict[str, Any]]
_undisturbed: dict[int, Results] = {}


@pytest.fixture
def nodes(leak_mark: str) -> Iterator[Nodes]:
    """Yield three nodes."""
    with nodes_or_skip(3) as made:
        yield made


@pytest.fixture
def make_job(launcher: Launcher, run_dir: Path, nodes: Nodes) -> Iterator[MakeJob]:
    """Yield a function that makes a job with so many ranks on each node, and optionally fewer places than nodes.

    The job's output is in the report of a failed test.
    """
    made: list[NodesJob] = []

    def make(per_node: int, places: int = 0) -> NodesJob:
        made.append(NodesJob(launcher, run_dir, nodes, per_node, places))
        return made[-1]

    yield make
    for job in made:
        print(job.output)


@pytest.fixture
def same(launcher: Launcher, run_dir: Path) -> Callable[[NodesJob], None]:
    """Return a check that a job's ranks ended like those of plain torchrun, taskd off, bit for bit."""

    def check(job: NodesJob) -> None:
        if job.ranks not in _undisturbed:
            folder = run_dir / "undisturbed"
            folder.mkdir()
            plain = Job(launcher, folder, job.ranks)
            plain.start("train.py", {"steps": STEPS}, env={"TASKD_PROCESS_ENABLE": None})
            assert plain.end() == 0, plain.output
            _undisturbed[job.ranks] = plain.results()
        for rank, (found, wanted) in enumerate(zip(job.results(), _undisturbed[job.ranks], strict=True)):
            for key in ("weights", "at", "random", "step"):
                assert found[key] == wanted[key], f"{key} of rank {rank}"

    return check
