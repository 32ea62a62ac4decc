"""Jobs that torch's dynamic rendezvous has formed, when the node that keeps its store is lost."""

from collections.abc import Callable

import pytest

from tests.e2e.plan import point
from tests.multinode.conftest import MakeJob
from tests.multinode.job import NodesJob
from tests.nodes import Node

pytestmark = [pytest.mark.slow, pytest.mark.root]

Lose = Callable[[Node], None]
RENDEZVOUS = ("--rdzv-conf=keep_alive_interval=1",)


@pytest.mark.parametrize("lose", [Node.kill_all, Node.power_off], ids=["killed", "silent"])
def test_the_node_of_the_store_is_lost(make_job: MakeJob, lose: Lose) -> None:
    """A spare takes its place, training goes on, and the end is not held up by a store that nobody serves."""
    points = [point("lost", 1, 4, "begin")]
    job: NodesJob = make_job(1, places=2)
    job.start("train.py", {"steps": 60, "points": points}, options=RENDEZVOUS, store="node1")
    job.wait(lambda: job.named("node waits"), "the spare")
    job.held("lost")
    before = job.pids
    lose(job.nodes[1])
    del job.torchruns[1]
    record = job.recovered(1)
    assert record["kept"] == {"0": before[0]}
    assert record["replaced"].keys() == {"1"}
    assert job.ends(30) == [0, 0]
    for node in (job.nodes[0], job.nodes[2]):
        assert job.said(node).count("the job goes on without it") <= 1
        assert "failed to send a keep-alive heartbeat" not in job.said(node)
        assert "failed to shutdown the rendezvous" not in job.said(node)
