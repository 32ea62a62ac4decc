"""One job under stock torchrun and under torchrun with taskd, and a user's view of both.

Rules:

1. Both run at the same time and in the same way (`programs/twin.py`); only TASKD_PROCESS_ENABLE differs.
2. Values that must differ between any two jobs are replaced by a word in braces: folders, pids, ports, ids, times, and
   the place in torchrun's loop at which a signal arrives. Only taskd's own variables are left out besides.
3. The order of lines is not compared: ranks write at any time.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.run import get_args_parser

from tests.e2e.job import FOREIGN
from tests.launch import free_port
from tests.leaks import MARK

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
OBSERVER = str(PROGRAMS / "observer.py")
LIMIT_S = 40.0
USUAL: dict[str, str | None] = {"TASKD_STANDBY": "0", "PET_MONITOR_INTERVAL": "0.5"}
"""No warm process: these jobs end before one would be ready. No rank is collected before taskd's agent knows it."""
if get_args_parser().get_default("master_port"):  # the same for all jobs of a machine, in older torch
    USUAL["PET_MASTER_PORT"] = "{port}"

_ALIKE: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "{uuid}"),
    (r"(?m)^([DIWEC])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ (?=\S)", r"\1 "),
    (r"(?m)^\[([DIWEC])\d{4} \d\d:\d\d:\d\d\.\d+ ", r"[\1 "),
    (r"((?:pid|process|Process|pids?:)[ =]?\[?)\d+", r"\1{pid}"),
    (r"(?<=D-state\) for )[\d.]+", "{time}"),
    (r"(?<=by PID )\d+", "{pid}"),
    (r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "{time}"),
    (r'("?timestamp"?: "?)\d+', r"\1{time}"),
    (r"(?<=logs/)([\w{}-]+?)_[a-z0-9_]{8}(?=/)", r"\1_{run}"),
    (r"torchelastic_[a-z0-9_]{8}/([\w{}-]+?)_[a-z0-9_]{8}", r"torchelastic_{run}/\1_{run}"),
    (r'(?<=File ")[^"]*/(?=torch/)', ""),
    (r", line \d+, in ", ", line {line}, in "),
    (r"(, in _invoke_run\n)(?:  .*\n)+?(?=  File .*, in _terminate_process_handler\n)", r"\1  {interrupted here}\n"),
)


LATER_OPTIONS = (
    "--virtual-local-rank",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--event-log-handler",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
    "--numa-binding",
)
"""Options that the oldest torchrun of the range does not have."""


@dataclass(frozen=True)
class Launch:
    """A job. In all texts {folder} stands for its folder, {port} for a free port, {observer} for `OBSERVER`.

    `nodes` has torchrun's arguments for each node, after NAME=value for its own variables.
    The later nodes start when a process writes to the FIFO `after`.
    With `manager` the one with taskd gets a manager at TASKD_MANAGER=127.0.0.1:{manager}.
    """

    nodes: tuple[tuple[str, ...], ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    program: str = "torch.distributed.run"
    ranks: int = 2
    after: str = ""
    manager: bool = False

    def lacks(self) -> list[str]:
        """Return its options that the installed torchrun does not have."""
        given = {word.partition("=")[0] for node in self.nodes for word in node}
        return sorted(given & set(LATER_OPTIONS) - set(get_args_parser()._option_string_actions))


def launch(*arguments: str, ranks: int = 2, program: str = "torch.distributed.run", **env: str | None) -> Launch:
    """Return a job of one node. All ranks run the observer, unless the arguments have a `training_script`."""
    return Launch(((f"--nproc-per-node={ranks}", *arguments),), env, program, ranks)


@dataclass(frozen=True)
class Seen:
    """A user's view of one job. `console` counts the lines of both streams, `files` are those in {folder}/logs."""

    statuses: list[int]
    seconds: float
    console: Counter[str]
    files: dict[str, str]
    ranks: dict[str, dict[str, Any]]
    others: dict[str, str]

    @property
    def text(self) -> str:
        """Lines of the console, as one text."""
        return "\n".join(self.console.elements())


@dataclass(frozen=True)
class Pair:
    """Views of one job under both."""

    stock: Seen
    taskd: Seen

    def check(self, *added: str) -> None:
        """Fail unless both are alike. `added`: lines that taskd alone writes to the console, as regular expressions."""
        stock, taskd = self.stock, self.taskd
        self.check_ranks()
        missing = stock.console - taskd.console
        assert not missing, "\n".join(["torchrun alone writes:", *missing, "taskd writes:", *taskd.console])
        unknown = [line for line in taskd.console - stock.console if not any(re.search(one, line) for one in added)]
        assert not unknown, "\n".join(["taskd alone writes:", *unknown])

    def check_ranks(self) -> None:
        """Fail unless statuses, files, and the ranks' views are alike. The console is not compared."""
        stock, taskd = self.stock, self.taskd
        assert taskd.statuses == stock.statuses, f"{stock.statuses} {stock.text}\n{taskd.statuses} {taskd.text}"
        assert taskd.ranks == stock.ranks
        assert {name: sorted(text.splitlines()) for name, text in taskd.files.items()} == {
            name: sorted(text.splitlines()) for name, text in stock.files.items()
        }
        assert taskd.others == stock.others


class Twin:
    """A warm torchrun, with taskd or without, that plays jobs."""

    def __init__(self, folder: Path, *, taskd: bool) -> None:
        folder.mkdir()
        self._folder = folder
        self._played = 0
        self._taskd = taskd
        enable = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(folder / "run")} if taskd else {}
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, "PYTHON", MARK))
        }
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "twin.py")],
                env={**inherited, **enable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def await_ready(self) -> None:
        """Wait until torch is imported."""
        assert self._answer() == "ready\n"

    def begin(self, job: Launch, mark: str) -> "Job":
        """Start a job. `mark` goes into the environment of its processes."""
        folder = self._folder / str(self._played)
        self._played += 1
        folder.mkdir()
        ports = {"port": str(free_port()), "manager": str(free_port())}
        words = {"folder": str(folder), "observer": OBSERVER, **ports}
        fifos = [f"{name}-{rank}" for name in ("here", "go") for rank in range(job.ranks)]
        for name in [*fifos, *([job.after] if job.after else [])]:
            os.mkfifo(folder / name)
        env = {"TWIN_FOLDER": str(folder), MARK: mark, **USUAL, **job.env}
        order = {
            "folder": str(folder),
            "env": {name: value and _filled(value, words) for name, value in env.items()},
            "nodes": [[_filled(word, words) for word in node] for node in job.nodes],
            "program": _filled(job.program, words),
            "after": job.after and str(folder / job.after),
            "manager": ports["manager"] if job.manager and self._taskd else "",
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Job(self, folder, words)

    def end(self, job: "Job") -> Seen:
        """Wait for a job's end. Return a user's view of it."""
        try:
            answer = json.loads(self._answer())
        except TimeoutError:
            for fork in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
                os.kill(int(fork), signal.SIGKILL)
            answer = json.loads(self._answer())
            raise AssertionError(f"no end within {LIMIT_S:g} s\n{look(job, **answer).text}") from None
        return look(job, **answer)

    def _answer(self) -> str:
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], LIMIT_S)[0]:
            raise TimeoutError
        line = output.readline()
        assert line, (self._folder / "errors").read_text()
        return line

    def close(self) -> None:
        """End the twin, which is idle now."""
        self._process.communicate(timeout=LIMIT_S)


@dataclass(frozen=True)
class Job:
    """A running job."""

    twin: Twin
    folder: Path
    words: dict[str, str]


def look(job: Job, statuses: list[int], seconds: float) -> Seen:
    """Collect a job's results."""
    folder = job.folder
    raw = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    texts = {_alike(f"{{folder}}/{name}", job)[9:]: _alike(text, job) for name, text in sorted(raw.items())}
    streams = {name for name in texts if re.fullmatch(r"std(out|err)-\d", name)}
    ranks = {name: json.loads(text) for name, text in texts.items() if name.startswith("seen-")}
    for seen in ranks.values():
        seen["env"] = {name: value for name, value in seen["env"].items() if not name.startswith("TASKD_")}
    return Seen(
        statuses=statuses,
        seconds=seconds,
        console=Counter(f"{name[:6]}: {line}" for name in streams for line in texts[name].splitlines()),
        files={name: text for name, text in texts.items() if name.startswith("logs/")},
        ranks=ranks,
        others={
            name: text for name, text in texts.items() if name not in streams | ranks.keys() and name[:5] != "logs/"
        },
    )


def _alike(text: str, job: Job) -> str:
    """Return the text with a word in braces for each value that differs between any two jobs."""
    for word, value in sorted(job.words.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"{{{word}}}")
    for pattern, replacement in _ALIKE:
        text = re.sub(pattern, replacement, text)
    return re.sub(r'("MASTER_PORT": ")\d+', r"\1{free}", text)


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    return text
