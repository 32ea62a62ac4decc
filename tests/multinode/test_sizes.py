"""Jobs of `--nnodes=MIN:MAX`: they begin with fewer nodes, grow, and start anew with fewer."""

import json

import pytest

from tests.e2e.plan import point
from tests.multinode.conftest import MakeJob

pytestmark = [pytest.mark.slow, pytest.mark.root]

RENDEZVOUS = ("--nnodes=2:3", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1")
WHOLE = (RENDEZVOUS[0], "--rdzv-conf=last_call_timeout=120,keep_alive_interval=1")
"""Options with which the job begins with all three nodes, however late one comes."""
STORE = "node1"


def test_a_job_begins_with_fewer_nodes_and_grows(make_job: MakeJob) -> None:
    """The third node comes when two have trained for a while. It takes part, and no process is restarted."""
    job = make_job(1)
    plan = {"steps": 60, "points": [point("early", 0, 4, "begin")]}
    job.start("train.py", plan, options=RENDEZVOUS, store=STORE, nodes=2)
    job.held("early")
    assert job.named("processes")[-1]["pids"].keys() <= {"0", "1"}
    job.add(job.nodes[2])
    job.wait(lambda: "node2" in [entry["host"] for entry in job.named("node waits")], "the third node")
    job.release("early")
    record = job.recovered(1)
    assert (record["strategy"], record["causes"]) == ("elastic-training", {})
    assert record["kept"].keys() == {"0", "1"}
    assert record["replaced"].keys() == {"2"}
    assert job.ends() == [0, 0, 0]
    results = job.results()
    assert [result["step"] for result in results] == [60] * 3
    assert len({result["weights"] for result in results}) == 1


def test_a_smaller_world_goes_on_from_its_copies(make_job: MakeJob) -> None:
    """The node of the rendezvous' store is lost for good. Then all ranks that were left die at once.

    Their nodes' copies are of the smaller world. It goes on from them, with a store of its own.
    """
    points = [point("lost", 1, 4, "begin"), point("zero", 0, 8, "begin"), point("two", 2, 8, "begin")]
    env: dict[str, str | None] = {"TASKD_RECOVER_STRATEGY": "recover-in-place,elastic-training"}
    job = make_job(1)
    job.start("train.py", {"steps": 12, "points": points}, options=WHOLE, store=STORE, env=env)
    job.held("lost")
    job.nodes[1].kill_all()
    del job.torchruns[1]
    assert job.recovered(1)["strategy"] == "elastic-training"
    job.kill("zero", "two")
    record = job.recovered(2)
    assert (record["restart"], record["replaced"].keys(), record["kept"]) == (False, {"0", "2"}, {})
    assert 4 <= record["step"] < 8
    assert job.ends() == [0, 0]
    results = [json.loads((job.folder / f"result-{rank}").read_text()) for rank in (0, 2)]
    assert [result["step"] for result in results] == [12, 12]
    assert len({result["weights"] for result in results}) == 1


def test_a_script_without_the_sdk_goes_on_with_fewer_nodes(make_job: MakeJob) -> None:
    """torchrun's own contract: MIN nodes are enough. No strategies are chosen, so the manager waits for no node."""
    points = [point(name, rank, "run", always=name != "lost") for rank, name in enumerate(("zero", "lost", "two"))]
    job = make_job(1)
    env: dict[str, str | None] = {"TASKD_WAIT_RESCHEDULE_TIMEOUT": "2"}
    job.start("hold.py", {"points": points}, options=WHOLE, store=STORE, env=env)
    for name in ("lost", "zero", "two"):
        job.held(name)
    job.nodes[1].kill_all()
    del job.torchruns[1]
    record = job.recovered(1)
    assert (record["strategy"], record["restart"]) == ("elastic-training", True)
    job.release("zero")
    assert job.ends() == [0, 0]
    seen = [json.loads(path.read_text())["env"] for path in job.folder.glob(f"seen-*-{record['generation']}")]
    assert [(env["RANK"], env["WORLD_SIZE"]) for env in sorted(seen, key=lambda env: env["RANK"])] == [
        ("0", "2"),
        ("1", "2"),
    ]
