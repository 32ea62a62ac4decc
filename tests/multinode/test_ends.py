"""Whole restarts on several nodes, the end of a job with one reason on all of them, and the seed's own scripts."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from taskd.runtime.agent.manager_timeout import NEEDED_S
from tests.e2e.job import ROOT
from tests.e2e.plan import point
from tests.e2e.test_manager import STOCK
from tests.launch import Launcher
from tests.multinode.conftest import MakeJob
from tests.multinode.job import MASTER_PORT, SECRET, NodesJob
from tests.nodes import Node

pytestmark = [pytest.mark.slow, pytest.mark.root]
EXAMPLES = ROOT / "examples"
STEPS = 40
WAIT_S = 5.0
"""Wait for a manager that does not answer, in seconds."""


@pytest.mark.thorough
def test_a_script_with_its_own_checkpoints(make_job: MakeJob) -> None:
    """A rank is killed: all start anew and warm, twice. A dynamic rendezvous ranks nodes by their names."""
    points = [point("first", 1, 4, "begin"), point("second", 0, 6, "begin")]
    job = make_job(1).start("plain.py", {"steps": 8, "points": points}, store="node0")
    for number, name in enumerate(["first", "second"], start=1):
        job.warm()
        job.kill(name)
        record = job.recovered(number)
        assert record["restart"]
        assert record["replaced"].keys() == {"0", "1", "2"}
        assert any(record["warm"].values())
    assert job.ends() == [0, 0, 0]
    assert job.managers[0].wait(20) == 0
    expected = sum(step * 30 + 3 for step in range(1, 9))
    assert [result["total"] for result in job.results()] == [expected] * 3
    starts = [line.split()[0] for line in (job.folder / "starts").read_text().splitlines()]
    assert starts == ["0", "3", "5"]


def test_the_budget_is_the_jobs(make_job: MakeJob) -> None:
    """A fault on one node spends it, another node's ends the job. Every node reports the reason, and exits with 1."""
    points = [point(name, rank, "run", always=True) for rank, name in enumerate(["zero", "one", "two"])]
    job = make_job(1)
    job.start("hold.py", {"points": points}, env={"TASKD_STANDBY": "0", "TASKD_MAX_RESTARTS": "1"})
    for name in ("zero", "two"):
        job.held(name)
    job.kill("one")
    assert job.recovered(1)["restart"]
    pids = job.pids
    job.wait(lambda: job.held("two") == pids[2], "the second process of rank 2")
    names = [entry["event"] for entry in job.events]
    assert "processes" not in names[names.index("recovered") :], "the recovery names processes that are in the journal"
    job.kill("two")
    assert job.ends() == [1, 1, 1]
    assert job.managers[0].wait(20) == 0
    for node in job.nodes:
        reason = "the job ends here: all 1 restarts of the job are spent (--max_restarts)"
        assert reason in job.said(node)
        summary = job.said(node).partition("Root Cause (first observed failure)")[2].partition("\n====")[0]
        assert (reason in summary) == (node.number != 2), "the one that has failed by itself says how"


@pytest.mark.parametrize("restarts", [0, 1])
def test_nodes_whose_ranks_have_ended(make_job: MakeJob, restarts: int) -> None:
    """They wait for the others. When the job fails, restarted or not, they fail at once and with the same reason."""
    points = [point(name, rank, "run", always=True) for rank, name in ((0, "zero"), (2, "two"))]
    env = {"TASKD_STANDBY": "0", "LOGLEVEL": "INFO", "TORCHELASTIC_ERROR_FILE": "/run/error.json"}
    job = make_job(1)
    job.start(
        "hold.py",
        {"points": [*points, *[point("one", 1, "run")] * restarts]},
        env={**env, "TASKD_MAX_RESTARTS": str(restarts)},
    )
    job.held("two")
    if restarts:
        job.held("one")
        job.kill("zero")
        assert job.recovered(1)["restart"]
        pids = job.pids
        job.wait(lambda: job.held("zero") == pids[0], "the second process of rank 0")
    ended = job.wait(lambda: job.pids, "the processes of all ranks")[1]
    job.wait(lambda: ended not in job.nodes[1].pids(), "the end of rank 1")
    job.kill("zero")
    assert job.ends(30) == [1, 1, 1]
    assert "timed out" not in job.said(job.nodes[1]), "torch complains of no wait"
    reasons = [event["reason"] for event in job.named("stopped")]
    for node, exit_code in zip(job.nodes, (-9, 0, -15), strict=True):
        summary = job.said(node).partition("Root Cause (first observed failure)")[2]
        assert f"exitcode  : {exit_code} " in summary, summary
        if node.number:
            assert f"the job ends here: {reasons[0]}" in summary
            error = json.loads(node.file("/run/error.json").read_text())
            assert error["message"]["message"] == f"the job ends here: {reasons[0]}"


def test_ranks_that_have_ended_start_again_with_the_others(make_job: MakeJob) -> None:
    """A node whose rank has ended well waits for the others, and takes part in a restart for one of them."""
    points = [point("one", 1, "run"), point("zero", 0, "run"), point("two", 2, "run", always=True)]
    # torchrun detects the end of the rank before the next fault
    often: dict[str, str | None] = {"TASKD_STANDBY": "0", "PET_MONITOR_INTERVAL": "0.01"}
    job = make_job(1).start("hold.py", {"points": points}, env=often)
    end_rank_1(job)
    job.kill("zero")
    assert job.recovered(1)["restart"]
    job.release("two")
    assert job.ends() == [0, 0, 0]
    assert job.said(job.nodes[1]).count("rank 1 ends") == 2


def test_a_node_whose_ranks_have_ended_does_not_wait_long_for_a_manager(make_job: MakeJob) -> None:
    """The manager is killed. Nodes that still run wait for the next one; it could not help the node that has ended."""
    points = [point(name, rank, "run") for rank, name in enumerate(["zero", "one", "two"])]
    env: dict[str, str | None] = {"TASKD_STANDBY": "0", "TASKD_MANAGER_WAIT_S": f"{WAIT_S:g}"}
    job = make_job(1).start("hold.py", {"points": points}, env=env)
    end_rank_1(job)
    assert STOCK not in job.output
    job.managers[0].kill()
    killed_s = time.monotonic()
    job.wait(lambda: f"for {NEEDED_S:g} s: {STOCK}" in job.said(job.nodes[1]), "the end of node 1's wait")
    assert time.monotonic() - killed_s > NEEDED_S - 1
    assert all(STOCK not in job.said(node) for node in (job.nodes[0], job.nodes[2]))
    job.release("zero")
    job.release("two")
    assert job.ends(WAIT_S + 5) == [0, 0, 0]
    assert job.said(job.nodes[1]).count("rank 1 ends") == 1


def end_rank_1(job: NodesJob) -> None:
    """Let rank 1 end when the job has formed and all ranks are at their points. The others stay."""
    for name in ("one", "zero", "two"):
        job.held(name)
    job.wait(lambda: [entry for entry in job.named("directive") if entry["order"] == "run"], "a job that has formed")
    job.release("one")
    job.wait(lambda: "rank 1 ends" in job.said(job.nodes[1]), "the end of rank 1")
    ended = job.pids[1]
    job.wait(lambda: ended not in job.nodes[1].pids(), "its process collected")


def test_the_seeds_scripts(make_job: MakeJob, launcher: Launcher, run_dir: Path) -> None:
    """`train_start.sh` on each node starts the manager and torchrun; a rank is killed while the digits are learned."""
    job = make_job(1)
    code = run_dir / "code"
    code.mkdir()
    text = (EXAMPLES / "manager.py").read_text()
    (code / "manager.py").write_text(
        text.replace("node_nums=1 ", "node_nums=3 ").replace("proc_per_node=4 ", "proc_per_node=1 ")
    )
    shutil.copy(EXAMPLES / "digits_ddp.py", code / "train.py")
    train = ["train.py", f"--steps={STEPS}"]
    plain = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]
    expected = run_dir / "expected.json"
    off = {**job.environment(), "TASKD_PROCESS_ENABLE": None, "GLOO_SOCKET_IFNAME": "lo"}
    assert launcher.run([*plain, *train, f"--out={expected}"], env=off, cwd=code)[0] == 0

    for node in job.nodes:
        script = [str(EXAMPLES / "train_start.sh"), str(code), str(run_dir)]
        start = ["bash", *script, *train, "--step-ms=60", f"--out={run_dir}/out.json"]
        job.torchruns.append(node.start(start, env=pod(job, node), output=run_dir / f"output-{node.name}"))
    job.run_dir = job.nodes[0].file("/run/tmp/taskd-0")
    job.wait(lambda: job.named("first step"), "the first step")
    before = job.pids
    job.nodes[1].kill(before[1])
    record = job.recovered(1)
    assert record["kept"] == {"0": before[0], "2": before[2]}
    assert record["replaced"].keys() == {"1"}
    assert 0 < record["target_step"] < STEPS
    assert job.ends() == [0, 0, 0]
    found, wanted = (json.loads(path.read_text()) for path in (run_dir / "out.json", expected))
    assert found["ranks_equal"]
    assert (found["sha256"], found["steps"]) == (wanted["sha256"], STEPS)


def pod(job: NodesJob, node: Node) -> dict[str, str | None]:
    """Return a cluster's variables for a node. `pip`, `python` and `torchrun` are those of this environment."""
    own = {"RANK": str(node.number), "WORLD_SIZE": str(len(job.nodes)), "POD_IP": node.address, "GPUS_PER_NODE": "1"}
    master = {"MASTER_ADDR": job.nodes[0].address, "MASTER_PORT": str(MASTER_PORT), "MINDX_TASK_ID": "default"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**job.environment(), "TASKD_PROCESS_ENABLE": None, "TASKD_SECRET": SECRET, "PATH": path, **own, **master}
