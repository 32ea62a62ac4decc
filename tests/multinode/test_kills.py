"""Ranks of several nodes and the manager are killed: the others live on, and the weights are as without a fault.

The manager listens on node 0 with a secret, torchrun is started with `--nnodes 3 --node_rank k`, as the seed does it.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.plan import point
from tests.multinode.conftest import STEPS, MakeJob
from tests.multinode.job import NodesJob

pytestmark = [pytest.mark.slow, pytest.mark.root]
Same = Callable[[NodesJob], None]


def recovered(job: NodesJob, times: int, killed: list[int], before: dict[int, int]) -> dict[str, Any]:
    """Wait for a recovery. Check that the killed ranks were replaced and no other process."""
    record = job.recovered(times)
    assert record["kept"] == {str(rank): pid for rank, pid in before.items() if rank not in killed}
    assert record["replaced"].keys() == {str(rank) for rank in killed}
    assert all(record["causes"][str(rank)] == "signal 9 (SIGKILL)" for rank in killed)
    assert not record["restart"]
    return record


def test_one_after_another_and_then_the_manager(make_job: MakeJob, same: Same) -> None:
    """A rank, two ranks of two nodes at once, the manager while training goes on, and a rank under the new manager."""
    points = [
        point("one", 1, 3, "forward"),
        point("rank 0 has begun", 0, 3, "begin"),
        point("rank 2 has begun", 2, 3, "begin"),
        point("zero", 0, 5, "forward"),
        point("two", 2, 5, "begin"),
        point("rank 1 has begun", 1, 5, "begin"),
        point("manager dies", 0, 7, "begin"),
        point("without", 0, 9, "begin"),
        point("again", 1, 9, "begin"),
    ]
    job = make_job(1).start("train.py", {"steps": STEPS, "points": points})
    kills = [("one",), ("zero", "two")]
    others = [("rank 0 has begun", "rank 2 has begun"), ("rank 1 has begun",)]
    for number, (names, begun) in enumerate(zip(kills, others, strict=True), start=1):
        job.warm()
        job.passed(*begun)
        before = job.pids
        record = recovered(job, number, job.kill(*names), before)
        assert all(record["warm"].values()), "a standby took over"
        assert record["target_step"] == [2, 4][number - 1]
    job.held("manager dies")
    first = job.managers[0]
    first.kill()
    assert first.wait(20) == -9
    job.release("manager dies")
    job.held("without")  # two steps later, and no rank has noticed
    second = job.start_manager()
    job.wait(lambda: len(job.named("manager started")) == 2 and job.pids, "the new manager's view of all ranks")
    job.release("without")
    record = recovered(job, 3, job.kill("again"), job.pids)
    assert record["target_step"] == 8
    assert record["generation"] > job.recovered(2)["generation"]
    assert job.ends() == [0, 0, 0]
    assert second.wait(20) == 0
    same(job)


@pytest.mark.thorough
def test_cold_starts(make_job: MakeJob, same: Same) -> None:
    """Two ranks on each node and no standby: a rank, then two of two nodes at once."""
    points = [point("three", 3, 3, "forward"), point("one", 1, 6, "begin"), point("four", 4, 6, "forward")]
    # Rank 3 dies at once, as others may still be in their second commit: with copies the step would be done again.
    plan = {"steps": STEPS, "points": points, "backup_every": 0}
    job = make_job(2).start("train.py", plan, env={"TASKD_STANDBY": "0"})
    for number, names in enumerate([("three",), ("one", "four")], start=1):
        for name in names:
            job.held(name)
        before = job.pids
        record = recovered(job, number, job.kill(*names), before)
        assert not any(record["warm"].values())
        assert record["target_step"] == [2, 5][number - 1]
    assert job.ends() == [0, 0, 0]
    assert job.managers[0].wait(20) == 0
    same(job)
