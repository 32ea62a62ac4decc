"""Jobs without the SDK: their own checkpoints, shells as ranks, machines without room, and taskd switched off."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS, Job, command_of, lives
from tests.e2e.plan import point
from tests.leaks import marked

COLD: dict[str, str | None] = {"TASKD_STANDBY": "0"}
NAMES_OF_ONE_RUN = (
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TASKD_RUN_DIR",
)


@pytest.mark.slow
def test_a_script_with_its_own_checkpoints(make_job: MakeJob) -> None:
    """Two kills in a row: each time all processes start anew, warm, and go on at the checkpoint.

    There are three ranks: stock torchrun's shared store misleads the second start of a group from three on.
    """
    points = [point("first", 1, 4, "begin"), point("second", 0, 6, "begin")]
    job = make_job(3).start("plain.py", {"steps": 8, "points": points})
    job.warm()
    for number, name in enumerate(["first", "second"], start=1):
        job.kill(name)
        record = job.recovered(number)
        assert record["restart"]
        assert record["replaced"].keys() == {"0", "1", "2"}
        assert any(record["warm"].values()) or number > 1
    assert job.end() == 0
    expected = sum(step * 30 + 3 for step in range(1, 9))
    assert [result["total"] for result in job.results()] == [expected] * 3
    starts = [line.split() for line in (job.folder / "starts").read_text().splitlines()]
    assert [step for step, _ in starts] == ["0", "3", "5"]
    assert len({pid for _, pid in starts}) == 3


def test_shells_as_ranks(make_job: MakeJob, leak_mark: str) -> None:
    """They start cold, which is reported once, and no process is kept warm. Children of a dead shell are killed."""
    job = make_job(2)
    plan = json.dumps({"folder": str(job.folder), "points": [point("one", 1, "run"), point("zero", 0, "run")]})
    arguments = ["--standalone", "--no-python", str(SCRIPTS / "shell.sh"), plan]
    job.launch(arguments, env={"PYTHON": sys.executable})
    child = job.held("one")
    job.held("zero")
    shell = job.wait(lambda: job.pids, "the processes")[1]
    assert child != shell
    os.kill(shell, 9)
    record = job.recovered(1)
    assert record["causes"] == {"1": "signal 9 (SIGKILL)"}
    assert not any(record["warm"].values())
    assert not lives(child), "the shell's Python is dead too"
    assert not [pid for pid in marked(leak_mark) if "taskd.python.template" in command_of(pid)]
    assert job.end() == 0
    assert job.output.count("dead ranks are replaced by cold starts only") == 1


def test_a_run_directory_that_cannot_be(make_job: MakeJob) -> None:
    """The error is reported once. The job runs, and a kill is recovered."""
    job = make_job(2)
    file = job.folder / "file"
    file.touch()
    job.start("hold.py", {"points": [point("one", 1, "run")]}, env={**COLD, "TASKD_RUN_DIR": str(file / "run")})
    job.kill("one")
    assert job.end() == 0
    assert job.output.count("no journal from here on") == 1
    assert "set TASKD_RUN_DIR" in job.output
    assert "all processes started anew after" in job.output


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_no_room_in_shared_memory(make_job: MakeJob) -> None:
    """The ranks' files are in the temporary folder, which is reported. Deaths are still detected."""
    job = make_job(2)
    plan = json.dumps({"folder": str(job.folder), "points": [point("one", 1, "run")]})
    small = 'mount -t tmpfs -o size=4k taskd /dev/shm && exec "$@"'
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command = ["unshare", "--mount", "sh", "-c", small, "sh", *torchrun, str(SCRIPTS / "hold.py"), plan]
    job.watch(job.launcher.start(command, env={**job.environment(), **COLD}))
    job.kill("one")
    assert job.recovered(1)["causes"] == {"1": "signal 9 (SIGKILL)"}
    assert job.end() == 0
    assert "/dev/shm: found 0.0 MB free" in job.output


def test_switched_off(make_job: MakeJob) -> None:
    """torchrun and ranks are then as without an installed taskd: variables, threads, files, output."""
    off, plain = (
        observe(make_job(2), arguments)
        for arguments in (["-m", "torch.distributed.run"], [str(SCRIPTS / "plain_torchrun.py")])
    )
    assert off == plain
    assert not any(rank["taskd"] or rank["objects"] for rank in off["ranks"])


def observe(job: Job, torchrun: list[str]) -> dict[str, Any]:
    """Return the properties of a torchrun with taskd off and of its ranks, from outside and inside."""
    plan = json.dumps({"folder": str(job.folder), "points": [point("one", 1, "run"), point("zero", 0, "run")]})
    command = ["python", *torchrun, "--nproc_per_node=2", "--standalone", str(SCRIPTS / "hold.py"), plan]
    job.watch(job.launcher.start(command, env={**job.environment(), "TASKD_PROCESS_ENABLE": None}))
    job.held("zero")
    job.held("one")
    tasks = len(os.listdir(f"/proc/{job.process.pid}/task"))
    maps = Path(f"/proc/{job.process.pid}/maps").read_text()
    job.release("zero")
    job.release("one")
    assert job.end() == 0
    ranks = [json.loads((job.folder / f"seen-{rank}-0").read_text()) for rank in range(2)]
    for rank in ranks:
        del rank["pid"]
        for name in NAMES_OF_ONE_RUN:
            rank["env"].pop(name, None)
    return {
        "ranks": ranks,
        "output": sorted(job.output.splitlines()),
        "tasks": tasks,
        "objects": ["zmq" in maps, "libtaskd" in maps],
        "run directory": job.run_dir.exists(),
    }
