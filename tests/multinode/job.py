"""A job on several nodes: one torchrun in each, `manager.py` on node 0, by the lines of the pages (`tests/typed.py`).

Rules:

1. The ranks' points and results, and the manager's journal, lie in the job's folder, which all nodes share. taskd
   writes all other files to the nodes' own TMPDIR and /dev/shm.
2. Pids are those inside the nodes: the same number can be a process of two nodes, so they are compared rank by rank.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import typed
from tests.e2e.job import LIMIT_S, ROOT, SCRIPTS, Job, Process
from tests.e2e.plan import Points
from tests.launch import Launcher
from tests.nodes import Node, Nodes

MASTER_PORT = typed.MASTER_PORT
SECRET = "only for these tests: 0123456789"


class NodesJob(Job):
    """A job with so many ranks on each of some nodes. With fewer `places` than nodes, the others are spares."""

    def __init__(self, launcher: Launcher, folder: Path, nodes: Nodes, per_node: int, places: int = 0) -> None:
        self.places = places or len(nodes)
        super().__init__(launcher, folder, per_node * self.places)
        self.nodes = nodes
        self.per_node = per_node
        self.torchruns: list[Process] = []
        self.managers: list[Process] = []
        self._points: Points = []
        self._env = self.environment()
        self._options: tuple[str, ...] = ()
        self._store = ""
        self._command: list[str] = []

    def start(
        self,
        script: str,
        plan: dict[str, Any] | None = None,
        *,
        options: tuple[str, ...] = (),
        env: dict[str, str | None] | None = None,
        nodes: int = 0,
        store: str = "",
    ) -> "NodesJob":
        """Start the manager, and torchrun on all nodes (or the first few) with one of our scripts.

        `options` are further ones of torchrun; `env` is for both. With a `store` the nodes meet there by c10d.
        """
        self._points = (plan or {}).get("points", [])
        self._env = {**self.environment(), **(env or {})}
        given = json.dumps({"folder": str(self.folder), "points": [], **(plan or {})})
        self._options, self._store, self._command = options, store, [str(SCRIPTS / script), given]
        self.start_manager()
        for number in range(nodes or len(self.nodes)):
            self.add(self.nodes[number])
        return self

    def add(self, node: Node, env: Mapping[str, str | None] | None = None) -> None:
        """Start torchrun on a node. `env`: changes for this node."""
        program, options = self._command, self._options
        if self._store:
            command = typed.dynamic(
                program,
                nnodes=str(len(self.nodes)),
                procs_per_node=self.per_node,
                manager_host=self.nodes[0].name,
                store_host=self._store,
                options=options,
            )
        else:
            command = typed.static(
                program,
                node_rank=node.number,
                nnodes=len(self.nodes),
                procs_per_node=self.per_node,
                master_addr=self.nodes[0].address,
                options=options,
            )
        self.torchruns.append(node.start(command, env={**self._env, **(env or {})}, output=self._output(node)))

    def start_manager(self) -> Process:
        """Start a manager on node 0, at the default port. The process has its pid outside."""
        program = self.folder / "manager.py"
        program.write_text(typed.manager_program(self.places, self.per_node))
        env = {**self._env, "TASKD_RUN_DIR": str(self.run_dir)}
        manager = self.nodes[0].start(["python", program], env=env, output=self.folder / "output-manager")
        self.managers.append(manager)
        return manager

    def environment(self) -> dict[str, str | None]:
        """Return the variables of the machine, a secret, and the path to the modules of the tests' scripts."""
        return {**typed.machine(), "PYTHONPATH": str(ROOT), "TASKD_SECRET": SECRET}

    def _output(self, node: Node) -> Path:
        return self.folder / f"output-{node.name}"

    def said(self, node: Node) -> str:
        """Return the output of a node's torchrun and its ranks."""
        return self._output(node).read_text(errors="replace")

    @property
    def process(self) -> Process:
        """A torchrun that has ended, if there is one."""
        return next((process for process in self.torchruns if process.poll() is not None), self.torchruns[0])

    @property
    def output(self) -> str:
        """Output of torchruns, ranks and managers, one node after the other."""
        texts = [
            f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.folder.glob("output-*"))
        ]
        return "\n".join(texts)

    @property
    def pids(self) -> dict[int, int]:
        """Process of each rank, as the newest manager knows it; empty until it knows all."""
        started = max(number for number, entry in enumerate(self.events) if entry["event"] == "manager started")
        known: dict[int, int] = {}
        for entry in self.events[started:]:
            if entry["event"] == "processes":
                known |= {int(rank): pid for rank, pid in entry["pids"].items()}
        return known if len(known) == self.ranks else {}

    def warm(self, standbys: int = 1) -> None:
        """Wait until each node has standbys that are ready."""

        def ready() -> bool:
            counts = {entry["node_rank"]: entry["count"] for entry in self.named("standbys")}
            return len(counts) == len(self.nodes) and min(counts.values()) >= standbys

        self.wait(ready, f"{standbys} standbys on each node")

    def kill(self, *points: str, signal_number: int = 9) -> list[int]:
        """Signal the ranks that wait at these points, when all of them do. Return their numbers, not their pids."""
        ranks = {entry["name"]: int(entry["rank"]) for entry in self._points}
        pids = [self.held(name) for name in points]
        for name, pid in zip(points, pids, strict=True):
            self.nodes[ranks[name] // self.per_node].kill(pid, signal_number)
        return [ranks[name] for name in points]

    def ends(self, limit_s: float = LIMIT_S) -> list[int]:
        """Wait for the end of all torchruns. Return their exit statuses, node by node."""
        end_s = time.monotonic() + limit_s
        return [process.wait(max(0.0, end_s - time.monotonic())) for process in self.torchruns]
