"""torchrun's options on the program and its places: each job the same with and without taskd."""

import sys

import pytest

from tests.thorough import everyday
from tests.torchrun.conftest import Play
from tests.torchrun.test_options_ends import FAULT
from tests.torchrun.twins import Launch, launch

THE_END = "the job ends here: all 0 restarts of the job are spent"
COLD = "dead ranks are replaced by cold starts only"

CASES: dict[str, Launch] = {
    "plain": launch("{observer}"),
    "standalone": launch("--standalone", "{observer}", "end", "--standalone", "-m"),
    "module": launch("-m", "tests.torchrun.programs.observer", "end", "word"),
    "role": launch("--role=trainer", "--tee=1", "{observer}"),
    "virtual local rank": launch("--virtual-local-rank", "{observer}", CUDA_VISIBLE_DEVICES="3,5"),
    "cpus": launch("--nproc-per-node=cpu", "{observer}"),
    "rendezvous id": launch(
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=myjob",
        "--log-dir={folder}/logs",
        "{observer}",
    ),
    "endpoint": launch(
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:{port}",
        "--rdzv-conf=join_timeout=20,is_host=1",
        "--local-addr=127.0.0.1",
        "{observer}",
        ranks=1,
    ),
    "start method of a script": launch("--start-method=forkserver", "{observer}", ranks=1),
    "static": launch("--master-addr=127.0.0.1", "--master-port={port}", "--node-rank=0", "{observer}", ranks=1),
    "local rank argument": launch("{observer}", "end", program="torch.distributed.launch"),
    "options as variables": launch(
        "{observer}", PET_ROLE="from-a-variable", PET_MAX_RESTARTS="4", PET_RDZV_ID="petrified", PET_STANDALONE="1"
    ),
    "no SDK in sight": launch(
        "--max-restarts=0", "{observer}", TORCH_NCCL_ASYNC_ERROR_HANDLING="3", OMP_NUM_THREADS="2"
    ),
}

EMBEDDED = (
    r"^stderr: MASTER_ADDR is set, and no manager answers at 127\.0\.0\.1:9601: the job of this one node is protected"
)

COLD_CASES: dict[str, Launch] = {
    "no Python": launch("--no-python", sys.executable, "-I", "{observer}"),
    "another Python": launch("{observer}", ranks=1, PYTHON_EXEC="/bin/echo"),
    "a shell": launch("--no-python", "/bin/sh", "-c", 'echo "$RANK of $WORLD_SIZE: $0"', "word"),
}

FUNCTION_CASES: dict[str, Launch] = {
    "fork": launch("--run-path", "--start-method=fork", "{observer}", "end", "word"),
    "spawn": launch("--run-path", "--start-method=spawn", "{observer}", "end", "word", ranks=1),
    "forkserver": launch("--run-path", "--start-method=forkserver", "{observer}", "end", "word", ranks=1),
}
PROCESSES = {"fork": "ForkProcess", "spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}

WRONG: dict[str, Launch] = {
    "no script": launch(),
    "unknown option": launch("--nodes=1", "{observer}"),
    "unknown backend": launch("--rdzv-backend=pigeon", "--rdzv-endpoint=localhost:1", "{observer}"),
    "wrong range": launch("--nnodes=2:1", "{observer}"),
    "no such script": launch("--max-restarts=0", "{folder}/missing.py"),
    "module and no Python": launch("-m", "--no-python", "tests.torchrun.programs.observer"),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_see_the_same(play: Play, name: str) -> None:
    pair = play(CASES[name])
    pair.check(*([EMBEDDED] if name == "static" else []))
    assert pair.stock.statuses == [0], pair.stock.text
    assert pair.stock.ranks


@pytest.mark.parametrize("name", COLD_CASES)
def test_other_programs_run_as_they_are(play: Play, name: str) -> None:
    play(COLD_CASES[name]).check(COLD)


@pytest.mark.parametrize("name", everyday(FUNCTION_CASES, "spawn"))
def test_functions_are_left_to_torchrun(play: Play, name: str) -> None:
    pair = play(FUNCTION_CASES[name])
    pair.check("the ranks run a function, expected a script: taskd leaves this job to torchrun")
    assert pair.stock.statuses == [0], pair.stock.text
    assert {rank["process"] for rank in pair.stock.ranks.values()} == {PROCESSES[name]}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_refused_alike(play: Play, name: str) -> None:
    pair = play(WRONG[name])
    pair.check(THE_END, *([FAULT.format("[01]")] if name == "no such script" else []))
    assert pair.stock.statuses != [0]
