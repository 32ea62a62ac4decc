"""Jobs under measurement: their start and end, their ranks' logs, and their journal.

Rules:

1. A job gets this process's environment, without variables that an earlier job may have left in it. Under stock
   torchrun no part of taskd is switched on.
2. A job's events are read from its ranks' logs and from its journal. Both carry CLOCK_MONOTONIC, the clock of
   `time.monotonic`. So no figure depends on the interval at which the files are read.
3. A job ends with its block, at the latest by SIGKILL to all processes that carry its mark in their environment.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from taskd.core.warm_starts import RESERVE
from taskd.runtime.box.blackbox import library_path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "scripts" / "train.py"
LOOK_S = 0.02
REST_S = 0.2
"""Time without processor use after which a process counts as idle, in seconds; /proc/PID/stat counts in 10 ms."""
START_LIMIT_S = 120
WARM_STEPS = 20
MARK = "BENCHMARK_JOB"
_UTIME, _STIME = 11, 12
"""Positions in /proc/PID/stat behind the name (proc(5))."""
_FOREIGN = ("TASKD_", "TORCHELASTIC_", "TORCH_DISABLE_SHARE_RDZV", "PET_", "MINDX_", "LD_PRELOAD", "MASTER_", "RANK")


class BenchmarkError(Exception):
    """Failure of a benchmark: the event to measure did not happen, or not as expected."""


def stock_environment() -> dict[str, str]:
    """Return the environment of torchrun without taskd."""
    env = {name: value for name, value in os.environ.items() if not name.startswith((*_FOREIGN, "WORLD_SIZE"))}
    return {**env, "OMP_NUM_THREADS": "1"}


def taskd_environment(run_dir: Path) -> dict[str, str]:
    """Return the environment of torchrun under taskd, as the seed's start script sets it."""
    return {
        **stock_environment(),
        **_switched_on(run_dir),
        "LD_PRELOAD": str(library_path("libtaskd.so")),
    }


def shimless_environment(run_dir: Path, directory: Path) -> dict[str, str]:
    """Return the environment of torchrun under a taskd without its two libraries, as if they had not been built.

    That taskd is a copy in `directory`, and the job must be started there. Without the libraries taskd recovers all the
    same: it detects deaths through pidfds, breaks stuck collectives by a fallback in Python, and counts steps in
    Python.
    """
    leave_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "taskd", directory / "taskd", ignore=leave_out)
    return {**stock_environment(), **_switched_on(run_dir), "PYTHONPATH": str(directory)}


def _switched_on(run_dir: Path) -> dict[str, str]:
    return {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir)}


def torchrun(words: Sequence[object], ranks: int, *options: object) -> list[str]:
    """Return the command of a job on this machine alone. `options` default to those of torchrun's manual."""
    program = Path(sys.executable).with_name("torchrun")
    how = options or ("--standalone", "--max-restarts", 3)
    return [str(word) for word in (program, "--nproc-per-node", ranks, *how, *words)]


def training(logs: "StepLogs", step_ms: float, *more: object) -> list[object]:
    """Return the script that the benchmarks disturb, with its arguments."""
    return [SCRIPT, "--record", logs.directory, "--step-ms", step_ms, *more]


class Job:
    """A running command and the processes that it started."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Process ID of the command."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True if the command has ended."""
        return self._process.poll() is not None

    def wait(self, limit_s: float) -> None:
        """Wait for the end of the command. Raise `BenchmarkError` if it is late, or if the status is not 0."""
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"the job has not ended within {limit_s:g} s, see {self.log}") from None
        if status:
            raise BenchmarkError(f"the job ended with status {status}, see {self.log}")

    def await_until(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait until the condition holds. Raise `BenchmarkError` if it does not in time, or if the job ends first."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if self.ended:
                raise BenchmarkError(f"the job ended while {what} was awaited, see {self.log}")
            if time.monotonic() > end_s:
                raise BenchmarkError(f"{what}: not within {limit_s:g} s, see {self.log}")
            time.sleep(LOOK_S)

    def await_warm(self, journal: "Journal") -> None:
        """Wait until the job trains and its warm processes are ready and idle.

        A new warm process first copies its template's memory, for 0.2 to 0.5 s on two cores. If it becomes a rank
        before that is done, the recovery takes longer.
        """
        self.await_until(lambda: journal.warm, "a warm process", START_LIMIT_S)
        used: dict[int, int] = {}
        since_s = time.monotonic()

        def rest() -> bool:
            nonlocal used, since_s
            now = {pid: _used_ticks(pid) for pid in self.warm_processes(journal)}
            if now != used:
                used, since_s = now, time.monotonic()
            return time.monotonic() - since_s >= REST_S

        self.await_until(rest, "warm processes that have nothing to do", START_LIMIT_S)

    def warm_processes(self, journal: "Journal") -> list[int]:
        """Return the children of torchrun that are no ranks: the template and its standbys."""
        children: list[int] = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                children += map(int, (task / "children").read_text().split())
        ranks = set(journal.pids.values())
        return [pid for pid in children if pid not in ranks]

    def await_training(self, logs: "StepLogs") -> None:
        """Wait until every rank trains and has committed its first `WARM_STEPS` steps."""
        self.await_until(lambda: logs.all_at(WARM_STEPS), f"step {WARM_STEPS}", START_LIMIT_S)


def _used_ticks(pid: int) -> int:
    """Return the processor time of a process, in clock ticks; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[_UTIME]) + int(fields[_STIME])


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path = ROOT) -> Iterator[Job]:
    """Run a command within a block, with its output in a file. None of its processes outlives the block."""
    mark = uuid.uuid4().hex
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**env, MARK: mark}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield Job(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        process.kill()
        process.wait()
        _kill_marked(f"{MARK}={mark}".encode())


def _kill_marked(mark: bytes) -> None:
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)


class StepLogs:
    """Logs of a job's ranks, as far as they are written (see `scripts/train.py`)."""

    def __init__(self, directory: Path, ranks: int) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._ranks = ranks
        self._known: dict[int, list[list[str]]] = {}
        self._read_bytes: dict[int, int] = {}
        self._steps: dict[tuple[int, int], dict[int, float]] = {}

    def starts(self, rank: int) -> list[int]:
        """Return the process IDs of a rank, in the order of their starts."""
        return [int(words[1]) for words in self._lines(rank) if words[0] == "start"]

    def built_s(self, rank: int, pid: int) -> float:
        """Return the seconds in which a process of a rank made the objects that it holds; 0.0 if it makes none."""
        built = [words for words in self._lines(rank) if words[0] == "built" and words[1] == str(pid)]
        return float(built[-1][2]) if built else 0.0

    def steps(self, rank: int, pid: int) -> dict[int, float]:
        """Return the commit time of each step of one process of a rank."""
        self._lines(rank)
        return self._steps.get((rank, pid), {})

    def all_at(self, step: int) -> bool:
        """Return whether the newest process of every rank has committed this step."""
        return all(step in self._newest(rank) for rank in range(self._ranks))

    def resumed_s(self, victim: int, dead: int, killed_s: float) -> float | None:
        """Return the time of the last rank's commit of the new world's first step; None if it is still missing.

        The new world is the one that `victim` came back to. Of each rank, only the commits of its newest process after
        the kill count.
        """
        if self.starts(victim)[-1] == dead:
            return None
        worlds = [
            {step: time_s for step, time_s in self._newest(rank).items() if time_s > killed_s}
            for rank in range(self._ranks)
        ]
        step = min(worlds[victim], default=None)
        if step is None or any(step not in world for world in worlds):
            return None
        return max(world[step] for world in worlds)

    def _newest(self, rank: int) -> dict[int, float]:
        starts = self.starts(rank)
        return self.steps(rank, starts[-1]) if starts else {}

    def _lines(self, rank: int) -> list[list[str]]:
        """Return the words of each line. Only new lines are read: recovering ranks need the processor."""
        lines = self._known.setdefault(rank, [])
        try:
            with (self.directory / f"rank-{rank}.log").open("rb") as file:
                file.seek(self._read_bytes.get(rank, 0))
                text = file.read()
        except FileNotFoundError:
            return lines
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes[rank] = self._read_bytes.get(rank, 0) + len(whole)
        fresh_lines = [line.split() for line in whole.decode().splitlines()]
        for words in fresh_lines:
            if words[0] == "step":
                self._steps.setdefault((rank, int(words[1])), {})[int(words[2])] = float(words[3])
        lines += fresh_lines
        return lines


class Journal:
    """Reader that follows the journal of a job under taskd."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "default" / "journal.jsonl"
        self._read = 0
        self._events: list[dict[str, Any]] = []

    def all(self, event: str) -> list[dict[str, Any]]:
        """Return the events of this name, oldest first."""
        self._follow()
        return [entry for entry in self._events if entry["event"] == event]

    def last(self, event: str) -> dict[str, Any]:
        """Return the newest event of this name; {} if there is none yet."""
        return next(iter(reversed(self.all(event))), {})

    def count(self, event: str) -> int:
        """Return the number of events of this name."""
        return len(self.all(event))

    @property
    def warm(self) -> bool:
        """True if training runs, and a standby and the reserve wait."""
        return bool(self.last("first step")) and self.last("standbys").get("count", 0) > RESERVE

    @property
    def pids(self) -> dict[int, int]:
        """Process ID of each rank."""
        return {int(rank): pid for rank, pid in self.last("processes").get("pids", {}).items()}

    def _follow(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._events.append(json.loads(line))
                self._read += len(line)


def fresh(directory: Path, name: str) -> Path:
    """Make an empty directory for one job and return it."""
    path = directory / name
    path.mkdir()
    return path


def measured(measure: Callable[[Path], None]) -> int:
    """Measure in a temporary directory and return the exit status: 1 after a `BenchmarkError`, with the logs kept."""
    directory = Path(tempfile.mkdtemp(prefix="taskd-bench-"))
    try:
        measure(directory)
    except BenchmarkError as error:
        print(f"benchmark: {error}; all logs: {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


def say(as_json: bool, entry: Mapping[str, Any], text: str) -> None:
    """Print one line of output, as JSON or for people."""
    print(json.dumps(entry) if as_json else text, flush=True)
