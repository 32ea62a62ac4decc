"""Jobs of one node that set MASTER_ADDR by habit: protected as any other, by one manager."""

import signal
import socket
from collections.abc import Callable

import pytest

from tests.cli.managers import serving
from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.e2e.test_manager import start_manager
from tests.launch import free_port
from tests.thorough import everyday

Same = Callable[[Job], None]
LINE = "MASTER_ADDR is set, and no manager answers at 127.0.0.1"
SLURM: dict[str, str | None] = {
    "SLURM_JOB_ID": "17", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
    "SLURM_JOB_NODELIST": "node[01]", "MASTER_PORT": "29517",
}  # fmt: skip
WAYS: dict[str, tuple[tuple[str, ...], dict[str, str | None]]] = {
    "exported": ((), {"MASTER_ADDR": "127.0.0.1"}),
    "host name": ((), {"MASTER_ADDR": socket.gethostname()}),
    "standalone": (("--standalone",), {"MASTER_ADDR": "127.0.0.1"}),
    "c10d": (("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"), {"MASTER_ADDR": "127.0.0.1"}),
    "options": (("--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port={port}"), {}),
    "variables": ((), {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}", "PET_NNODES": "1"}),
    "srun": ((), {**SLURM, "MASTER_ADDR": "node[01]"}),
}


@pytest.mark.parametrize("way", everyday(WAYS, "c10d", "srun"))
def test_a_killed_rank_is_recovered(make_job: MakeJob, way: str) -> None:
    """torchrun's own default would end the job. One line names the protecting manager, and how to choose another."""
    options, variables = WAYS[way]
    job = make_job(2)
    points = [point("one", 1, "run"), point("zero", 0, "run")]
    port = free_port()
    options = tuple(option.format(port=port) for option in options)
    variables = {name: text and text.format(port=port) for name, text in variables.items()}
    env = {**variables, "TASKD_STANDBY": "0", "TASKD_MANAGER_PORT": str(free_port())}
    job.start("hold.py", {"points": points}, options=options, env=env)
    job.held("zero")
    job.kill("one")
    assert job.recovered(1)["strategy"] == "recover-in-place"
    assert job.end() == 0, job.output
    assert job.output.count(LINE) == 1
    assert len(job.named("manager started")) == 1


@pytest.mark.slow
def test_all_other_processes_are_kept(make_job: MakeJob, same: Same) -> None:
    job = make_job(2)
    points = [point("one", 1, 4, "forward")]
    env: dict[str, str | None] = {"MASTER_ADDR": "127.0.0.1", "TASKD_MANAGER_PORT": str(free_port())}
    job.start("train.py", {"steps": STEPS, "points": points}, options=(), env=env)
    job.held("one")
    before = job.pids
    job.kill("one")
    record = job.recovered(1)
    assert (record["strategy"], record["kept"]) == ("recover-in-place", {"0": before[0]})
    assert job.end() == 0, job.output
    same(job)


@pytest.mark.parametrize("first", everyday(["manager", "torchrun"], "torchrun"))
def test_a_manager_that_the_launch_script_starts_is_used(make_job: MakeJob, first: str) -> None:
    """The manager is `python manager.py &`, as in train_start.sh. torchrun may start a moment before it."""
    job = make_job(2)
    port = free_port()
    if first == "manager":
        manager = start_manager(job, port)
    points = [point("one", 1, "run"), point("zero", 0, "run")]
    env: dict[str, str | None] = {"MASTER_ADDR": "127.0.0.1", "TASKD_MANAGER_PORT": str(port), "TASKD_STANDBY": "0"}
    job.start("hold.py", {"points": points}, options=("--max-restarts=32767",), env=env)
    if first == "torchrun":
        manager = start_manager(job, port)
    job.held("zero")
    job.kill("one")
    job.recovered(1)
    assert job.end() == 0, job.output
    assert manager.wait(20) == 0, "it ends with the job that it has served"
    assert LINE not in job.output
    assert len(job.named("manager started")) == 1


def test_a_manager_that_comes_later_has_no_part_in_the_job(make_job: MakeJob) -> None:
    """A job never has two managers. The line has named the address at which torchrun tried to find one."""
    job = make_job(2)
    port = free_port()
    points = [point("one", 1, "run"), point("zero", 0, "run")]
    env: dict[str, str | None] = {"MASTER_ADDR": "127.0.0.1", "TASKD_MANAGER_PORT": str(port), "TASKD_STANDBY": "0"}
    job.start("hold.py", {"points": points}, options=(), env=env)
    job.says(f"{LINE}:{port}")
    late = start_manager(job, port)
    job.wait(lambda: f"{port}" in job.launcher.output(late), "the late manager")
    job.held("zero")
    job.kill("one")
    job.recovered(1)
    assert job.end() == 0, job.output
    assert late.poll() is None
    late.terminate()
    assert late.wait(20) == 0


def test_somebody_else_listens_there(make_job: MakeJob) -> None:
    """It is a manager of another secret. The job has its own, and the line gives the reason."""
    job = make_job(2)
    here = {**job.environment(), "TASKD_PROCESS_ENABLE": None, "TASKD_SECRET": "0123456789abcdef" * 2}
    with serving("--nodes", "1", "--procs-per-node", "2", "--port", "0", env=here) as other:
        port = other.address.rpartition(":")[2]
        points = [point("one", 1, "run"), point("zero", 0, "run")]
        env = {"MASTER_ADDR": "127.0.0.1", "TASKD_MANAGER_PORT": port, "TASKD_STANDBY": "0"}
        job.start("hold.py", {"points": points}, options=(), env={**env, "TASKD_SECRET": "fedcba9876543210" * 2})
        job.held("zero")
        job.kill("one")
        job.wait(lambda: job.output.count("by recover-in-place"), "the recovery")
        assert job.end() == 0, job.output
        assert job.output.count(f"{LINE}:{port} (") == 1
        assert other.end(signal.SIGTERM)[0] == 0
