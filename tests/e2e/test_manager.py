"""Managers that are absent, late, of another secret, or gone: the job does at least as well as under plain torchrun."""

from collections.abc import Callable

import pytest

from tests.cli.managers import serving
from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job, Process
from tests.e2e.plan import point
from tests.launch import free_port

Same = Callable[[Job], None]
STOCK = "torchrun's own behaviour takes over; taskd keeps trying"


def served_at(port: int, wait_s: float = 1) -> dict[str, str | None]:
    return {"TASKD_MANAGER": f"127.0.0.1:{port}", "TASKD_MANAGER_WAIT_S": f"{wait_s:g}", "TASKD_STANDBY": "0"}


def test_nobody_listens_and_a_rank_is_killed(make_job: MakeJob) -> None:
    """There is one warning. The first fault then restarts the whole group, as torchrun does, from torchrun's budget."""
    job = make_job(2)
    points = [point("one", 1, "run"), point("zero", 0, "run")]
    job.start("hold.py", {"points": points}, options=("--standalone", "--max_restarts=1"), env=served_at(free_port()))
    job.says(STOCK)
    job.held("zero")
    job.kill("one")
    assert job.end() == 0
    assert job.output.count(STOCK) == 1
    assert "no manager answers at 127.0.0.1" in job.output
    assert job.output.count("ends\n") == 2
    assert sorted(path.name for path in job.folder.glob("seen-*")) == ["seen-0-0", "seen-0-1", "seen-1-0", "seen-1-1"]


def test_another_secret(make_job: MakeJob) -> None:
    """The reason is reported without waiting for another manager, and the job completes."""
    job = make_job(2)
    port = free_port()
    manager = start_manager(job, port, secret="0123456789abcdef" * 2)
    points = [point("one", 1, "run")]
    env = {**served_at(port), "TASKD_SECRET": "fedcba9876543210" * 2, "TASKD_MANAGER_WAIT_S": "10"}
    job.start("hold.py", {"points": points}, env=env)
    job.says(STOCK)
    job.release("one")
    assert job.end() == 0
    assert job.output.count(STOCK) == 1
    assert "secret" in job.output[: job.output.index(STOCK)]
    manager.terminate()
    assert manager.wait(20) == 0


def test_a_manager_that_comes_late_and_one_that_is_replaced(make_job: MakeJob) -> None:
    """taskd takes over when the manager answers. Another one goes on where the first stopped, with its budget."""
    job = make_job(2)
    port = free_port()
    points = [point("one", 1, "run"), point("zero", 0, "run"), point("again", 1, "run"), point("over", 1, "run")]
    job.start("hold.py", {"points": points}, env=served_at(port))
    job.says(STOCK)
    first = start_manager(job, port)
    job.says("the manager answers: taskd recovers again")
    job.held("zero")
    job.kill("one")
    job.recovered(1)
    first.kill()
    assert first.wait(20) == -9
    second = start_manager(job, port)
    job.wait(lambda: job.named("manager started")[1:], "the second manager")
    started = job.events.index(job.named("manager started")[1])
    job.wait(lambda: "processes" in [entry["event"] for entry in job.events[started:]], "its view of the job")
    job.kill("again")
    record = job.recovered(2)
    assert record["generation"] > job.recovered(1)["generation"]
    job.release("over")
    assert job.end() == 0
    assert second.wait(20) == 0


@pytest.mark.slow
def test_the_command_serves_a_job(make_job: MakeJob, same: Same) -> None:
    """It serves in place of a manager.py: a rank is killed, its peer keeps its process, the weights are the same."""
    job = make_job(2)
    here = {**job.environment(), "TASKD_PROCESS_ENABLE": None}
    with serving("--nodes", "1", "--procs-per-node", "2", "--port", "0", env=here) as served:
        points = [point("one", 1, 4, "forward"), point("begun", 0, 4, "begin"), point("last", 0, 10, "begin")]
        job.start("train.py", {"steps": STEPS, "points": points}, env={"TASKD_MANAGER": served.address})
        job.held("one")
        job.passed("begun")
        before = job.pids
        job.kill("one")
        record = job.recovered(1)
        assert (record["strategy"], record["kept"], record["target_step"]) == ("recover-in-place", {"0": before[0]}, 3)
        job.release("last")
        assert job.end() == 0
        assert served.process.wait(20) == 0, "it ends with the job"
        out, err = served.process.communicate()
    assert out == ""
    assert "by recover-in-place: rank 1 gets a new process" in err
    same(job)


def start_manager(job: Job, port: int, secret: str | None = None) -> Process:
    """Start a manager for the job's ranks as the seed does: `python manager.py`."""
    program = job.folder / f"manager-{len(list(job.folder.glob('manager-*')))}.py"
    program.write_text(
        "from taskd.api import init_taskd_manager, start_taskd_manager\n"
        f"assert init_taskd_manager({{'job_id': 'default', 'node_nums': 1, 'proc_per_node': {job.ranks}}})\n"
        "assert start_taskd_manager()\n"
    )
    env = {**job.environment(), "TASKD_MANAGER_PORT": str(port), "TASKD_SECRET": secret}
    return job.launcher.start(["python", program], env=env)
