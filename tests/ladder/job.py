"""A job of the ladder: `examples/digits_ddp.py` on namespaced nodes, one rank each, as an operator runs it.

Rules:

1. A place is a torchrun with that `--node_rank`. Torchruns beyond the manager's places are spares.
2. Each node uses the commands of the pages (`tests/typed.py`). Agents find the manager by `--master_addr`, the name
   `head`, which stands for the manager's present node.
3. The job's own journal, its outcome, and the passes that its ranks count are judged.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import typed
from tests.e2e.job import ROOT
from tests.launch import environment
from tests.nodes import Node, Nodes

PLACES = 3
STEPS = 260
STEP_MS = 20
SECRET = "the ladder's own: 0123456789"
HEAD = "head"
RANK = Path(__file__).with_name("rank.py")
LIMIT_S = 120.0
LOOK_S = 0.05
Process = subprocess.Popen[bytes]


class LadderError(Exception):
    """A scenario went otherwise than it should."""


class LadderJob:
    """One job. `places` torchruns are started on the first nodes, and `spares` on those after them."""

    def __init__(
        self,
        nodes: Nodes,
        folder: Path,
        *,
        places: int = PLACES,
        spares: int = 0,
        steps: int = STEPS,
        options: Sequence[str] = (),
        dynamic: bool = False,
        env: dict[str, str] | None = None,
    ) -> None:
        """Set up a job. `options` are torchrun's. With `dynamic` the nodes meet by c10d, which assigns their ranks."""
        self.nodes, self.folder = nodes, folder
        self.places, self.steps, self.options, self.dynamic = places, steps, tuple(options), dynamic
        self.expected = places + spares
        self.run_dir = folder / "run"
        self.env: dict[str, str | None] = {**typed.machine(), "TASKD_SECRET": SECRET, **(env or {})}
        self.torchruns: dict[int, Process] = {}
        self.managers: list[Process] = []

    def start(self) -> None:
        """Start the manager on node 0, and all torchruns. Return when every rank has done ten steps."""
        self.start_manager(self.nodes[0])
        for node in list(self.nodes)[: self.expected]:
            self.start_torchrun(node, node.number)
        self.await_steps(10)

    def start_manager(self, node: Node) -> Process:
        """Start a manager on that node, where all agents find it."""
        self.nodes.rename(HEAD, node)
        command = typed.manager(self.places, 1)
        env = {**self.env, "TASKD_RUN_DIR": str(self.run_dir)}
        self.managers.append(node.start(command, env=env, output=self.folder / "output-manager"))
        return self.managers[-1]

    def start_torchrun(self, node: Node, node_rank: int) -> Process:
        """Start one more torchrun of the job, with the job's own line."""
        program: list[str | Path] = [RANK, self.folder, "--steps", str(self.steps), "--step-ms", str(STEP_MS)]
        program += ["--out", self.folder / "out.json"]
        if self.dynamic:
            command = typed.dynamic(
                program,
                nnodes=str(self.expected),
                procs_per_node=1,
                manager_host=HEAD,
                store_host=self.nodes[0].name,
                options=self.options,
            )
        else:
            command = typed.static(
                program,
                node_rank=node_rank,
                nnodes=self.expected,
                procs_per_node=1,
                master_addr=HEAD,
                options=self.options,
            )
        process = node.start(command, env=self.env, output=self.folder / f"output-{node.name}", cwd=ROOT)
        self.torchruns[node.number] = process
        return process

    # ---- its reports

    @property
    def journal(self) -> list[dict[str, Any]]:
        """Every event so far, of all managers."""
        lines = [line for path in sorted(self.run_dir.rglob("*.jsonl")) for line in path.read_text().splitlines()]
        events = [json.loads(line) for line in lines]
        return sorted(events, key=lambda event: float(event["unix_s"]))

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return all events of one name."""
        return [event for event in self.journal if event["event"] == name]

    @property
    def pids(self) -> dict[str, int]:
        """Process of each rank, as last reported."""
        known: dict[str, int] = {}
        for event in self.named("processes"):
            known |= event["pids"]
        return known

    def passes(self, rank: int) -> int:
        """Return the number of steps that the processes of a rank have begun."""
        return sum(path.stat().st_size for path in self.folder.glob(f"passes-{rank}-*"))

    @property
    def proofs(self) -> int:
        """Number of steps that all ranks have done twice, to prove that the job goes on exactly after a fault."""
        outputs = self.folder.glob("output-node*")
        return sum(path.read_text(errors="replace").count("is done twice, to prove") for path in outputs)

    def await_steps(self, more: int) -> None:
        """Wait until every rank has begun so many steps more."""
        goals = [self.passes(rank) + more for rank in range(self.places)]
        self.wait(lambda: all(self.passes(rank) >= goal for rank, goal in enumerate(goals)), f"{more} steps more")

    def await_progress(self, rank: int, more: int) -> None:
        """Wait until one rank has begun so many steps more."""
        goal = self.passes(rank) + more
        self.wait(lambda: self.passes(rank) >= goal, f"{more} steps more of rank {rank}")

    def await_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the count-th event of a name."""
        self.wait(lambda: len(self.named(name)) >= count, f"event {name!r} ({count})")
        return self.named(name)[count - 1]

    def wait(self, done: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait until `done` holds. Raise `LadderError` if it does not in time."""
        until_s = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > until_s:
                raise LadderError(f"not within {limit_s:g} s: {what}")
            time.sleep(LOOK_S)  # the job reports by files alone

    def end(self) -> dict[int, int]:
        """Wait for the end of all torchruns that live. Return their exit statuses by node."""
        live = {number: process for number, process in self.torchruns.items() if self.nodes[number].up}
        self.wait(lambda: all(process.poll() is not None for process in live.values()), "the end of the job")
        return {number: process.returncode for number, process in live.items()}

    @property
    def outcome(self) -> dict[str, Any]:
        """Result that rank 0 has written at the end."""
        path = self.folder / "out.json"
        if not path.exists():
            raise LadderError("the job has left no outcome")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def undisturbed(folder: Path, ranks: int = PLACES) -> str:
    """Return the weights' SHA-256 of the same training under plain torchrun, taskd off, on this machine itself."""
    folder.mkdir()
    command: list[str | Path] = ["torchrun", "--standalone", f"--nproc_per_node={ranks}", RANK, folder]
    command += ["--steps", str(STEPS), "--out", folder / "out.json"]
    env = environment(typed.machine())
    with (folder / "output").open("wb") as sink:
        subprocess.run(command, env=env, stdout=sink, stderr=sink, check=True, cwd=ROOT, timeout=LIMIT_S)
    return str(json.loads((folder / "out.json").read_text())["sha256"])
