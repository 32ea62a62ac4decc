"""A job of a real torchrun, as a test uses it: its output, its journal, its processes, and points at which ranks wait.

Rules:

1. A rank reports its arrival at a point by a file in the job's folder, and waits there until the test kills or releases
   it (`tests/e2e/scripts/points.py`). So every fault strikes at its chosen point, however busy the machine is.
2. A job reports its progress by files alone, so no call can block on it: `wait` polls them, with a limit.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.launch import Launcher
from tests.leaks import marked

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
LIMIT_S = 90.0
LOOK_S = 0.03
PF_EXITING = 0x4
"""Flag of a process in proc(5)."""
FOREIGN = ("TASKD_", "TORCHELASTIC_", "MINDX_", "MASTER_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LD_PRELOAD")
T = TypeVar("T")
Process = subprocess.Popen[bytes]


def no_outer_job() -> dict[str, str | None]:
    """Return the changes of an environment that remove the variables of a job around this process."""
    return {name: None for name in os.environ if name.startswith(FOREIGN)}


class Job:
    """One torchrun. Its manager is embedded unless `env` sets another one."""

    def __init__(self, launcher: Launcher, folder: Path, ranks: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.run_dir = folder / "run"
        self.launcher = launcher
        self.cwd: Path | None = None
        self.python = "python"
        self._process: Process | None = None
        self._events: list[dict[str, Any]] = []
        self._read_chars = 0

    def start(
        self,
        script: str,
        plan: dict[str, Any] | None = None,
        *,
        options: tuple[str, ...] = ("--standalone",),
        env: dict[str, str | None] | None = None,
    ) -> "Job":
        """Start torchrun with one of our scripts; `plan` goes to the script as JSON."""
        given = json.dumps({"folder": str(self.folder), "points": [], **(plan or {})})
        return self.launch([*options, str(SCRIPTS / script), given], env=env)

    def launch(self, arguments: list[str], *, env: dict[str, str | None] | None = None) -> "Job":
        """Start torchrun with these arguments after the number of ranks."""
        command = [self.python, "-m", "torch.distributed.run", f"--nproc_per_node={self.ranks}", *arguments]
        self.watch(self.launcher.start(command, env={**self.environment(), **(env or {})}, cwd=self.cwd))
        return self

    def watch(self, process: Process) -> None:
        """Use this process as the job's torchrun."""
        self._process = process

    def environment(self) -> dict[str, str | None]:
        """Return the variables: taskd on, and none of an outer job."""
        ours = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(self.run_dir)}
        return {**no_outer_job(), **ours, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}

    @property
    def process(self) -> Process:
        """Process of torchrun."""
        assert self._process is not None
        return self._process

    @property
    def output(self) -> str:
        """Output of torchrun and its ranks."""
        return self.launcher.output(self.process)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Events of the journal."""
        path = self.run_dir / "default" / "journal.jsonl"
        if path.exists():
            with path.open() as file:
                file.seek(self._read_chars)
                whole, _, _ = file.read().rpartition("\n")
            if whole:
                self._events += [json.loads(line) for line in whole.split("\n")]
                self._read_chars += len(whole) + 1  # JSON is ASCII
        return self._events

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's events of that name."""
        return [entry for entry in self.events if entry["event"] == event]

    @property
    def pids(self) -> dict[int, int]:
        """Process of each rank, as the manager knows it."""
        known = self.named("processes")
        return {int(rank): pid for rank, pid in known[-1]["pids"].items()} if known else {}

    def wait(self, look: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
        """Return the result of `look` as soon as it is true. Fail if torchrun ends before, or after `limit_s`."""
        end_s = time.monotonic() + limit_s
        while not (found := look()):
            ended = self.process.poll()
            assert ended is None or look(), f"the job ended with {ended} before {what}"
            assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
            time.sleep(LOOK_S)
        return found

    def warm(self, standbys: int = 1) -> None:
        """Wait until standbys are ready."""

        def ready() -> bool:
            known = self.named("standbys")
            return bool(known) and known[-1]["count"] >= standbys

        self.wait(ready, f"{standbys} standbys")

    def recovered(self, times: int) -> dict[str, Any]:
        """Wait until so many faults have been recovered. Return the record of the last one."""
        return self.wait(lambda: self.named("recovered")[times - 1 : times], f"recovery number {times}")[0]

    def says(self, text: str) -> None:
        """Wait for a text in the output."""
        self.wait(lambda: text in self.output, f"the text {text!r}")

    def held(self, point: str) -> int:
        """Wait until a process waits at this point. Return its pid."""
        return int(self.wait(lambda: _text(self.folder / f"held-{point}"), f"a process at the point {point!r}"))

    def release(self, point: str) -> None:
        """Let the process at this point go on."""
        (self.folder / f"go-{point}").touch()

    def passed(self, *points: str) -> None:
        """Wait until a process comes to each of these points, and let it go on.

        A rank that is still behind its commit when another one dies does the step again from a copy, if there is one.
        """
        for point in points:
            self.held(point)
            self.release(point)

    def kill(self, *points: str, signal_number: int = signal.SIGKILL) -> list[int]:
        """Signal the processes that wait at these points, when all of them do. Return their pids."""
        pids = [self.held(point) for point in points]
        for pid in pids:
            os.kill(pid, signal_number)
        return pids

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Wait for torchrun's end. Return its exit status."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended within {limit_s:g} s") from None

    def results(self) -> list[dict[str, Any]]:
        """Return the result that each rank wrote at its end."""
        return [json.loads((self.folder / f"result-{rank}").read_text()) for rank in range(self.ranks)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def await_none(mark: str, what: str, limit_s: float = 30.0) -> None:
    """Wait until no process of this test is left."""
    end_s = time.monotonic() + limit_s
    while left := marked(mark):
        assert time.monotonic() < end_s, f"{what}: {[command_of(pid) for pid in left]}"
        time.sleep(LOOK_S)


def lives(pid: int) -> bool:
    """Return whether a process goes on. A process that has ended, is ending, or has a pending SIGKILL does not.

    A killed process needs a core to end, and on a busy machine others come first.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    state, flags, pending = fields[0], int(fields[6]), int(fields[28])
    return state not in "ZX" and not flags & PF_EXITING and not pending & 1 << (signal.SIGKILL - 1)


def command_of(pid: int) -> str:
    """Return a process's command line, for a message."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"process {pid}, gone"
