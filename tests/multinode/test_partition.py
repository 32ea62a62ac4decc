"""A network that fails and comes back before a node counts as dead: training waits, and nothing is recovered."""

import time
from collections.abc import Callable

import pytest

from tests.e2e.plan import point
from tests.multinode.conftest import STEPS, MakeJob
from tests.multinode.job import NodesJob

pytestmark = [pytest.mark.slow, pytest.mark.root]
CUT_S = 2.0
"""Length of the cut, in seconds: four heartbeats, and a fraction of the timeout below."""


def test_a_short_partition_is_no_fault(make_job: MakeJob, same: Callable[[NodesJob], None]) -> None:
    """The node of rank 0 and of the manager is cut off: no rank is paused or replaced, no step redone."""
    points = [point("before", 0, 4, "begin"), point("after", 2, 5, "begin")]
    env: dict[str, str | None] = {"TASKD_NODE_TIMEOUT_S": "60", "TASKD_MANAGER_WAIT_S": "60", "TASKD_STANDBY": "0"}
    job = make_job(1).start("train.py", {"steps": STEPS, "points": points}, env=env)
    job.held("before")
    before = job.pids
    job.nodes[0].cut()
    job.release("before")
    time.sleep(CUT_S)  # the length of the fault
    assert not (job.folder / "held-after").exists(), "the step needs all nodes"
    job.nodes[0].mend()
    job.held("after")
    job.release("after")
    assert job.ends() == [0, 0, 0]
    assert job.pids == before
    assert not job.named("recovered")
    assert {entry["order"] for entry in job.named("directive")}.isdisjoint({"pause", "join"})
    same(job)
