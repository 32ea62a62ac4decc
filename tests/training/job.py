"""A job of real processes for the tests: hosts the store, sees deaths, plans with the real core, and collects results."""

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from taskd.core.ranks import Held, plan_restore
from taskd.wire.messages import Condition, WorldPlan

PROGRAM = Path(__file__).with_name("rank_program.py")
DEFAULTS: dict[str, Any] = {
    "ranks": 4, "steps": 20, "width": 64, "bucket_mb": 25, "norm": False, "logs": False, "groups": False, "ddp": {}, "faults": [],
}


class Job:
    """Runs the ranks to the end, replacing those that die."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.options = {**DEFAULTS, **options, "directory": str(directory)}
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self.processes: dict[Any, subprocess.Popen[bytes]] = {}
        self.reports: list[dict[int, dict[str, Any]]] = []

    def run(self) -> list[dict[str, Any]]:
        """Return the result of each rank."""
        size = self.options["ranks"]
        try:
            for rank in range(size):
                self._start(rank)
            if self.options["faults"]:
                self._start("spare")
            for fault in self.options["faults"]:
                self._recover(fault["rank"])
            results = [json.loads(self._wait(f"result/{rank}")) for rank in range(size)]
            self.store.set("end", "")
            for name, process in self.processes.items():
                assert process.wait(30) == 0, f"process {name} ended with {process.returncode}"
            return results
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def _start(self, name: Any) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path.cwd())}
        command = [sys.executable, str(PROGRAM), str(self.store.port), json.dumps(self.options), str(name)]
        self.processes[name] = subprocess.Popen(command, env=environment)

    def _recover(self, victim: int) -> None:
        dead = self.processes.pop(victim)
        assert dead.wait(60) == -9, f"rank {victim} ended with {dead.returncode}"
        generation = len(self.reports) + 1
        self.store.set("spare", json.dumps({"rank": victim, "generation": generation}))
        self.processes[victim] = self.processes.pop("spare")
        if len(self.reports) + 1 < len(self.options["faults"]):
            self._start("spare")
        size = self.options["ranks"]
        reports = {rank: json.loads(self._wait(f"report/{generation}/{rank}")) for rank in range(size)}
        self.reports.append(reports)
        chosen = plan_restore({rank: Held(r["step"], Condition(r["condition"])) for rank, r in reports.items()})
        assert chosen is not None, reports
        plan = WorldPlan(
            generation=generation,
            world_size=size,
            store_host="127.0.0.1",
            store_port=self.store.port,
            target_step=chosen.target_step,
            adopt=chosen.adopt,
            transfers=chosen.transfers,
            timeout_s=20,
        )
        self.store.set(f"plan/{generation}", msgspec.msgpack.encode(plan))

    def _wait(self, key: str) -> bytes:
        """Return the key's value; fail at once when a process ends that should not."""
        found: list[bytes] = []
        waiter = threading.Thread(target=lambda: found.append(self.store.get(key)), daemon=True)
        waiter.start()
        while waiter.is_alive():
            waiter.join(0.05)
            ended = {name: p.poll() for name, p in self.processes.items() if p.poll() is not None}
            assert not ended or found, f"while waiting for {key}: ended with {ended}"
        return found[0]
