"""Job of real processes: hosts the store, detects deaths, plans with the real core and collects the ranks' results."""

import json
import signal
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError

from taskd.core.recovery.ranks import plan_restore
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition, RankStatus, Stage, WorldPlan
from taskd.wire.state import Transfer
from tests.launch import Launcher

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("rank_program.py")
FORKS = Path(__file__).with_name("programs") / "ranks.py"
DEFAULTS: dict[str, Any] = {
    "ranks": 4,
    "steps": 20,
    "width": 64,
    "bucket_mb": 25,
    "norm": False,  # BatchNorm: buffers that a forward pass changes
    "logs": False,  # a collective between the optimizer's step and the commit
    "groups": False,  # a group of new_group, used at the end
    "ddp": {},
    "faults": [],  # {"rank", "step", "point"}: the rank kills itself there; one after another
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}


def paused(rank: int, report: dict[str, Any]) -> RankStatus:
    """Return the status of a waiting rank, from its report."""
    return RankStatus(
        rank=JobRank(rank),
        incarnation=0,
        generation=0,
        stage=Stage.PAUSED,
        step=report["step"],
        condition=Condition(report["condition"]),
    )


class Job:
    """Runner of the ranks to their end that replaces dead ranks. It is a context manager because of the store."""

    def __init__(self, launcher: Launcher, directory: Path, **options: Any) -> None:
        self.options = {**DEFAULTS, **options, "directory": str(directory)}
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=90))
        self.reports: list[dict[int, dict[str, Any]]] = []
        self._launcher = launcher
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._spares: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[dict[str, Any]]:
        """Return the result of each rank."""
        size = self.options["ranks"]
        for rank in range(size):
            self._running[rank] = self._start(str(rank))
        for fault in self.options["faults"]:
            self._recover(fault["rank"])
        results = [json.loads(self._wait(f"result/{rank}")) for rank in range(size)]
        self.store.set("end", "")
        for rank, process in self._running.items():
            assert process.wait(30) == 0, f"rank {rank} ended with {process.returncode}"
        return results

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        command = ["python", str(PROGRAM), str(self.store.port), json.dumps(self.options), name]
        return self._launcher.start(command, env=ENVIRONMENT)

    def _recover(self, victim: int) -> None:
        generation = len(self.reports) + 1
        spare = self._start(f"spare-{generation}")
        dead = self._running.pop(victim)
        assert dead.wait(60) == -signal.SIGKILL, f"rank {victim} ended with {dead.returncode}"
        self.store.set(f"spare-{generation}", json.dumps({"rank": victim, "generation": generation}))
        self._running[victim] = spare
        size = self.options["ranks"]
        reports = {rank: json.loads(self._wait(f"report/{generation}/{rank}")) for rank in range(size)}
        self.reports.append(reports)
        held = {JobRank(rank): paused(rank, report) for rank, report in reports.items()}
        chosen = plan_restore(held, dict.fromkeys(held, ""))
        assert chosen is not None, reports
        plan = WorldPlan(
            generation=generation,
            world_size=size,
            store_host="127.0.0.1",
            store_port=self.store.port,
            target_step=chosen.target_step,
            adopt=tuple(map(WorldRank, chosen.adopt)),
            transfers=tuple(
                Transfer(donor=WorldRank(t.donor), receivers=tuple(map(WorldRank, t.receivers)))
                for t in chosen.transfers
            ),
            timeout_s=20,
        )
        self.store.set(f"plan/{generation}", msgspec.json.encode(plan).decode())

    def _wait(self, key: str) -> bytes:
        """Return the key's value. Fail at once when a process ends too early."""
        while not self._is_there(key):
            ended = {rank: p.returncode for rank, p in self._running.items() if p.poll() is not None}
            assert not ended, f"while waiting for {key}: ended with {ended}"
        return self.store.get(key)

    def _is_there(self, key: str) -> bool:
        try:
            self.store.wait([key], timedelta(milliseconds=200))
        except DistStoreError:
            return False
        return True


def run_ranks(
    launcher: Launcher, size: int, program: Path, *arguments: str | Path, env: Mapping[str, str] = ENVIRONMENT
) -> tuple[list[int], str]:
    """Run the ranks of a program. Return their exit statuses and the output. {rank} in an argument is the rank."""
    status, output = launcher.run(["python", FORKS, str(size), program, *arguments], env=env, timeout_s=80)
    assert status == 0, output
    return json.loads(output.splitlines()[-1]), output
