"""A mesh over nodes, each a whole replica: one is lost for good, the others go on, and then a node comes back.

With three nodes, one of those that are left has two shares, and the other one. Without the first node, all ranks have
other numbers in the world than in their meshes.
"""

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launch import Launcher, free_port
from tests.thorough import everyday

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "elastic.py"
PER_NODE = 2
LIMIT_S = 90.0
CHECKED = 2
"""Number of the step that the self-check does twice."""


class Job:
    """Some torchruns on this machine, and a manager."""

    def __init__(self, launcher: Launcher, folder: Path, shape: str, nodes: int) -> None:
        self.folder, self.nodes, self.ranks = folder, nodes, nodes * PER_NODE
        self._launcher = launcher
        self._port = free_port()
        manager = free_port()
        self._env = {
            "ELASTIC_FOLDER": str(folder),
            "ELASTIC_SHAPE": shape,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TASKD_MANAGER": f"127.0.0.1:{manager}",
            "TASKD_PROCESS_ENABLE": "on",
            "TASKD_RECOVER_STRATEGY": "elastic-training",
            "TASKD_RUN_DIR": str(folder),
            "TASKD_SECRET": secrets.token_hex(16),
        }
        sizes = ["--nodes", str(nodes), "--procs-per-node", str(PER_NODE)]
        listens = {"TASKD_MANAGER_PORT": str(manager), "TASKD_MANAGER_HOST": "127.0.0.1"}
        launcher.start(["python", "-m", "taskd", "manager", *sizes], env={**self._env, **listens})
        self.torchruns = [self.boot(number) for number in range(nodes)]

    def boot(self, number: int) -> "subprocess.Popen[bytes]":
        """Start the torchrun of a node."""
        where = [
            f"--nnodes={self.nodes}",
            f"--node-rank={number}",
            "--master-addr=127.0.0.1",
            f"--master-port={self._port}",
        ]
        command = ["python", "-m", "torch.distributed.run", f"--nproc-per-node={PER_NODE}", *where, str(PROGRAM)]
        return self._launcher.start(command, env=self._env)

    def lose(self, number: int) -> None:
        """Kill a node: torchrun, and its ranks with it."""
        pids = {int(rank): pid for entry in self.events("processes") for rank, pid in entry["pids"].items()}
        self.torchruns[number].kill()
        for rank in range(number * PER_NODE, (number + 1) * PER_NODE):
            os.kill(pids[rank], signal.SIGKILL)
        self.torchruns[number].wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for path in self.folder.rglob("journal.jsonl") for line in path.read_text().splitlines()]
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def told(self) -> list[tuple[int, int, int, int, int]]:
        """Return rank, step, share, number of shares, and ranks of the world, for each report."""
        lines = [
            (rank, line)
            for rank in range(self.ranks)
            if (path := self.folder / f"shares-{rank}").exists()
            for line in path.read_text().splitlines()
        ]
        return [(rank, *json.loads(line)) for rank, line in lines if line.endswith("]")]

    def steps(self, ranks: int) -> set[int]:
        """Return the steps that were done in a world with so many ranks."""
        return {one[1] for one in self.told() if one[4] == ranks}

    def wait(self, reached: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < end_s, f"no {what} within {LIMIT_S:g} s"
            time.sleep(0.1)  # between two polls of files


Case = tuple[str, int, int]
"""Shape, number of nodes, and the lost node."""
CASES: list[Case] = [("hsdp", 3, 0), ("hsdp", 2, 1), ("tp", 3, 0), ("tp", 2, 1), ("pp", 3, 0), ("pp", 2, 1)]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("case", everyday(CASES, CASES[0]), ids=str)
def test_a_row_goes_and_comes_back(launcher: Launcher, run_dir: Path, case: Case) -> None:
    shape, nodes, lost = case
    job = Job(launcher, run_dir, shape, nodes)
    job.wait(lambda: len(job.steps(job.ranks)) > 5, "step of the full world")
    job.lose(lost)
    job.wait(lambda: len(job.events("recovered")) == 1, "recovery")
    job.wait(lambda: len(job.steps(job.ranks - PER_NODE)) > 5, "step of the smaller world")
    job.torchruns[lost] = job.boot(lost)
    job.wait(lambda: len(job.events("recovered")) == 2, "recovery with the node that is back")
    before = max(job.steps(job.ranks))
    job.wait(lambda: max(job.steps(job.ranks)) > before + 3, "step of the world that has grown")
    (run_dir / "stop").touch()
    assert [torchrun.wait(LIMIT_S) for torchrun in job.torchruns] == [0] * nodes
    assert [record["strategy"] for record in job.events("recovered")] == ["elastic-training"] * 2
    whole(job, job.ranks if shape == "hsdp" else nodes)
    same(launcher, job, shape)


def whole(job: Job, count: int) -> None:
    """Check that in each step all shares were worked at, each by as many ranks as have a part of the model."""
    told = job.told()
    assert {one[3] for one in told} == {count}
    wanted = sorted(list(range(count)) * (job.ranks // count))
    by_step: dict[int, dict[int, list[int]]] = {}
    for _, step, share, _, ranks in told:
        by_step.setdefault(step, {}).setdefault(ranks, []).append(share)
    for step, worlds in by_step.items():  # an interrupted step begins in one world, and is done again in the next
        repeated = step == CHECKED and sorted(2 * wanted) == sorted(worlds.get(job.ranks, ()))
        assert repeated or wanted in map(sorted, worlds.values()), f"step {step}: {worlds}"
    first = {rank: share for rank, step, share, _, ranks in told if step == 0 and ranks == job.ranks}
    assert first == {rank: rank * count // job.ranks for rank in range(job.ranks)}


def same(launcher: Launcher, job: Job, shape: str) -> None:
    """Check that the weights are those of a whole job under plain torchrun, except for the order of sums."""
    folder = job.folder / "plain"
    folder.mkdir()
    found = torch.load(job.folder / "weights.pt")
    env = {
        "ELASTIC_FOLDER": str(folder),
        "ELASTIC_SHAPE": shape,
        "ELASTIC_STEPS": str(found["step"]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TASKD_PROCESS_ENABLE": "off",
    }
    command = ["python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}", str(PROGRAM)]
    status, told = launcher.run(command, env=env, timeout_s=120)
    assert status == 0, told
    wanted = torch.load(folder / "weights.pt")
    for name, tensor in wanted["model"].items():
        torch.testing.assert_close(found["model"][name], tensor, rtol=1e-9, atol=1e-11)
