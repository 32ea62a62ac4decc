"""The jobs that `tests.faults` strikes: `program.py` under a real torchrun, on this machine or on two nodes of it.

Rules:

1. Only the job's journal, its exit status, and the results of its ranks are judged.
2. A job on this machine runs in a mount namespace of its own, in which `small` is a small tmpfs that can be filled.
3. Each of the two nodes has a second network, `eth1`, for traffic between the ranks. It can be cut alone.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import typed
from tests.e2e.job import ROOT, Job, Process
from tests.faults.plan import Plan
from tests.launch import Launcher
from tests.nodes import Nodes

RANKS = 4
PROGRAM = Path(__file__).with_name("program.py")
NATIVE = Path(__file__).with_name("native.c")
_SMALL = 'mount -t tmpfs -o size=64k small "$0" && exec "$@"'
_SUBNET = "10.78.0"
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def build_native(folder: Path) -> Path:
    """Build the library in which ranks crash."""
    library = folder / "native.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-g", "-O1", "-shared", "-fPIC", "-o", library, NATIVE], check=True)
    return library


class FaultJob(Job):
    """One torchrun with four ranks, `plan` for all of them."""

    def __init__(self, launcher: Launcher, folder: Path, plan: Plan) -> None:
        super().__init__(launcher, folder, RANKS)
        self.plan = plan

    def environment(self) -> dict[str, str | None]:
        """Return the variables, with the plan's time for unproven hangs."""
        limit = {"TASKD_HANG_UNPROVEN_S": f"{self.plan.unproven_s:g}"} if self.plan.unproven_s else {}
        return {**super().environment(), **limit}

    def begin(self, native: Path) -> None:
        """Start the job."""
        shutil.copy(native, self.folder / "native.so")
        self.open()

    def open(self) -> None:
        """Start its processes."""
        command: list[str | Path] = [*_TORCHRUN, "--standalone", f"--nproc_per_node={RANKS}", PROGRAM, self.plan.text]
        if self.plan.fault == "disk":
            small = self.folder / "small"
            small.mkdir()
            command = ["unshare", "--mount", "--", "sh", "-c", _SMALL, small, *command]
        self.watch(self.launcher.start(command, env=self.environment(), cwd=ROOT))

    def await_strike(self) -> None:
        """Wait for the fault."""
        self.wait(self.plan.struck_s, "the fault itself")

    def await_reached(self) -> int:
        """Wait until the victim has come to its step. Return its pid."""
        path = self.folder / f"reached-{self.plan.victims[0]}"
        self.wait(path.exists, "the victim at its step")
        return int(path.read_text())

    def diagnoses(self) -> list[dict[str, Any]]:
        """Diagnoses so far."""
        return self.named("diagnosis")

    def outcome(self) -> dict[int, dict[str, Any]]:
        """Return the result of each rank that has ended well."""
        paths = {rank: self.folder / f"result-{rank}" for rank in range(self.ranks)}
        return {rank: json.loads(path.read_text()) for rank, path in paths.items() if path.exists()}

    def children(self, rank: int) -> list[int]:
        """Return the processes of a victim's data loader."""
        return list(json.loads((self.folder / f"children-{rank}").read_text()))


class TwoNodesJob(FaultJob):
    """Two ranks on each of two nodes; the manager and node 0's torchrun on the first."""

    def __init__(self, launcher: Launcher, folder: Path, plan: Plan, nodes: Nodes) -> None:
        super().__init__(launcher, folder, plan)
        self.nodes = nodes

    def open(self) -> None:
        """Set up the second network, and start the manager and a torchrun on each node."""
        self.nodes.hub.ip("link add data up type bridge")
        for node in self.nodes:
            port = f"data{node.number}"
            self.nodes.hub.ip(
                f"link add {port} type veth peer name eth1 netns {node.space.pid}", f"link set {port} master data up"
            )
            node.space.ip(f"address add {_SUBNET}.{node.number + 1}/24 dev eth1", "link set eth1 up")
        first, nodes = self.nodes[0], len(self.nodes)
        command = typed.manager(nodes, RANKS // nodes)
        manager = {**self.environment(), "TASKD_RUN_DIR": str(self.run_dir)}
        first.start(command, env=manager, output=self.folder / "output-manager")
        torchruns = [self._torchrun(number) for number in range(len(self.nodes))]
        self.watch(torchruns[0])
        self.others: list[Process] = torchruns[1:]

    def _torchrun(self, number: int) -> Process:
        command = typed.static(
            [PROGRAM, self.plan.text],
            node_rank=number,
            nnodes=len(self.nodes),
            procs_per_node=RANKS // len(self.nodes),
            master_addr=self.nodes[0].address,
        )
        output = self.folder / f"output-node{number}"
        return self.nodes[number].start(command, env=self.environment(), output=output, cwd=ROOT)

    def environment(self) -> dict[str, str | None]:
        """Return the variables: traffic between ranks uses the second network, and the nodes share a secret."""
        own = {"GLOO_SOCKET_IFNAME": "eth1", "TASKD_SECRET": "only for these faults: 0123456789"}
        settings = {"TASKD_STANDBY": "0"}  # all ranks keep their processes
        if self.plan.unproven_s:
            settings["TASKD_HANG_UNPROVEN_S"] = f"{self.plan.unproven_s:g}"
        return {**typed.machine(), "PYTHONPATH": str(ROOT), **own, **settings}

    @property
    def output(self) -> str:
        """Output of all nodes."""
        paths = sorted(self.folder.glob("output-*"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in paths)

    def cut_data(self, number: int) -> None:
        """Cut the second network of a node."""
        self.nodes.hub.ip(f"link set data{number} down")

    def mend_data(self, number: int) -> None:
        """Undo `cut_data`."""
        self.nodes.hub.ip(f"link set data{number} up")

    def cut_all(self, number: int) -> None:
        """Cut all networks of a node."""
        self.nodes.hub.ip(f"link set data{number} down", f"link set {self.nodes[number].port} down")

    def mend_all(self, number: int) -> None:
        """Undo `cut_all`."""
        self.nodes.hub.ip(f"link set data{number} up", f"link set {self.nodes[number].port} up")

    def end(self, limit_s: float = 60.0) -> int:
        """Wait for the end of both torchruns. Return the first exit status that is not 0."""
        statuses = [super().end(limit_s), *(process.wait(limit_s) for process in self.others)]
        return next((status for status in statuses if status), 0)
