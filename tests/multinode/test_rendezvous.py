"""Jobs that torch's dynamic rendezvous has formed, when the node that keeps its store is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.job import ROOT
from tests.e2e.plan import point
from tests.multinode.conftest import MakeJob
from tests.multinode.job import NodesJob
from tests.nodes import Node
from tests.thorough import everyday

pytestmark = [pytest.mark.slow, pytest.mark.root]

Lose = Callable[[Node], None]
RENDEZVOUS = ("--rdzv-conf=keep_alive_interval=1",)
BREAKS = "from tests.torchrun.programs import breaks\nbreaks.apply()\n"


@pytest.mark.parametrize("lose", everyday([Node.kill_all, Node.power_off], Node.power_off), ids=["killed", "silent"])
def test_the_node_of_the_store_is_lost(make_job: MakeJob, lose: Lose) -> None:
    """A spare takes its place, training goes on, and the absent store does not delay the end."""
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


def test_a_spare_that_taskd_fails_on_starts_no_ranks(make_job: MakeJob, tmp_path: Path) -> None:
    """Other nodes hold the ranks' numbers. The job goes on, and the spare's torchrun ends with the reason."""
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    env: dict[str, str | None] = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "BREAKS": "taskd.adaptors.torchrun.agent:_woven",
        "ERROR": "RuntimeError",
        "FIRED": str(tmp_path / "fired"),
    }
    job: NodesJob = make_job(1, places=2)
    points = [point("trains", 0, 4, "begin")]
    job.start("train.py", {"steps": 40, "points": points}, options=RENDEZVOUS, nodes=2, store="node0")
    job.add(job.nodes[2], env)
    assert job.torchruns.pop().wait(30) == 1
    job.held("trains")
    assert (tmp_path / "fired").exists()
    said = job.said(job.nodes[2])
    assert "this node holds no place in a job that trains" in said
    assert "start torchrun on this node again" in said
    job.release("trains")
    assert job.ends(30) == [0, 0]
    assert not job.named("recovered")
