"""`taskd chaos` as a user calls it, and a node of a job as its target."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from taskd.runtime.chaos.job import find_jobs
from taskd.runtime.system.processes import stat
from taskd.wire.kinds import JobRank
from tests.shim.armed import plain, until

NODE = Path(__file__).with_name("programs") / "chaos_node.py"
Process = subprocess.Popen[bytes]


class Starter(Protocol):
    """An object that starts processes somewhere, such as `Launcher` on this machine."""

    def start(self, command: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None) -> Process: ...

    def output(self, process: Process) -> str: ...


class ChaosNode:
    """A node with ranks from `first` on, and the command on it.

    `launcher` starts processes there and has their output.
    """

    def __init__(self, launcher: Starter, run_dir: Path, job: str, ranks: int, checks: int = 0, first: int = 0) -> None:
        self.run_dir = run_dir
        self._launcher = launcher
        run_dir.mkdir(exist_ok=True)
        command = ["python", str(NODE), str(run_dir), job, *map(str, (ranks, checks, first))]
        variables = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir), "TASKD_JOB_ID": job}
        self.agent = launcher.start(command, env={**plain(), **variables})
        until(lambda: len(self.pids) > ranks, "the node's processes run")
        for rank in range(first, first + ranks):
            self._await_rank(JobRank(rank))

    @property
    def pids(self) -> dict[str, int]:
        """Processes of the node by their names: `agent`, `rank 0`, `check PID` and so on."""
        path = self.run_dir / "node.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _await_rank(self, rank: JobRank) -> None:
        def seen() -> bool:
            return any(job.agent.pid == self.agent.pid and rank in job.ranks() for job in find_jobs())

        until(seen, f"rank {rank} is seen")

    def play(self, *words: object) -> Process:
        """Start the command on this job. Its output grows."""
        return self.started([], *words)

    def started(self, by: Sequence[str], *words: object) -> Process:
        """Start it by another command."""
        scenario, *rest = map(str, words)
        python = sys.executable if by else "python"
        command = [*by, python, "-m", "taskd", "chaos", scenario, "--agent", str(self.pids["agent"]), *rest]
        return self._launcher.start(command, env=plain())

    def said(self, process: Process) -> str:
        return self._launcher.output(process)

    def until_said(self, process: Process, text: str) -> None:
        until(lambda: text in self.said(process) or process.poll() is not None, text)
        assert text in self.said(process), self.said(process)

    def end(self, process: Process, number: signal.Signals = signal.SIGINT) -> str:
        """Signal the process, and wait for its end. Return its output."""
        process.send_signal(number)
        assert process.wait(30) == (-number if number == signal.SIGKILL else 0), self.said(process)
        return self.said(process)

    def run(self, *words: object) -> tuple[int, str]:
        process = self.play(*words)
        return process.wait(30), self.said(process)


def state(pid: int) -> str:
    """Return the state letter of /proc; "" if the process has ended and was collected."""
    known = stat(pid)
    return known.state.value if known is not None and known.state is not None else ""


MakeNode = Callable[..., ChaosNode]
