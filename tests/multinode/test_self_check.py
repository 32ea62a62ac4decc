"""The verdict of a job's first start holds on a node that is new at a full restart."""

import pytest

from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.launch import Launcher
from tests.multinode.conftest import MakeJob

pytestmark = [pytest.mark.slow, pytest.mark.root]
STEPS = 10


def test_a_new_node_takes_over_the_verdict_of_the_others(make_job: MakeJob, launcher: Launcher) -> None:
    """A prefetched batch is handed out again on all nodes, though one of them knows it from the others alone.

    After the full restart, another rank dies in the first step. Then the rank on the new node is replaced, behind its
    first commit and later, and its successors go on from its records.
    """
    plan = {"how": "prefetcher", "steps": STEPS, "backup_every": 0}
    everybody = [point(f"all-{rank}", rank, 5, "begin") for rank in range(3)]
    first = [point(f"first-{rank}", rank, 0, "begin") for rank in range(3)]
    later = [*first, point("soon", 1, 1, "begin"), point("again", 1, 8, "begin")]
    job = make_job(1)
    met = [job.folder / f"met-{name}" for name in (*(one["name"] for one in first), "soon")]
    for path in met:
        path.touch()  # the first start does not wait there
    job.start("self_checked.py", {**plan, "points": [*everybody, *later]})
    for one in everybody:
        job.held(one["name"])
    for path in met:
        path.unlink()
    job.nodes[1].file("/run/tmp/taskd-0/default/self-check.json").unlink()
    job.kill(*(one["name"] for one in everybody))
    assert job.recovered(1)["restart"]
    for one in first:
        job.held(one["name"])  # all are inside the function
    for one in first[1:]:
        job.release(one["name"])
    for number, name in enumerate(("first-0", "soon", "again"), 2):
        job.kill(name)
        assert not job.recovered(number)["restart"]
    assert job.ends() == [0, 0, 0]
    plain = Job(launcher, job.folder / "plain", 3)
    plain.folder.mkdir()
    plain.start("self_checked.py", plan, env={"TASKD_PROCESS_ENABLE": None})
    assert plain.end() == 0, plain.output
    assert [one["weights"] for one in job.results()] == [one["weights"] for one in plain.results()]
    assert job.output.count("a batch of 'loader' is fetched ahead") == 1, "it is proven once"
