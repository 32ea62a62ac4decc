"""A training under torchrun in an environment: once by stock torchrun, once with taskd.

Rules:

1. A job's commands are those of our pages, in a clean environment of variables.
2. A snippet of bash makes the environment, in the namespaces that it requires; then the command starts. The snippet
   gets the entries of `_words` as variables.
3. Ranks report by files in the job's folder, which every environment shares with this process.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.bare.installation import Installation
from tests.bare.judge import Outcome, Wanted, claims_protection, judge, limit_s
from tests.bare.stage import Found, Stage, Suite
from tests.e2e.job import command_of
from tests.faults import cgroups
from tests.launch import Launcher, free_port
from tests.leaks import MARK, marked
from tests.scripts.play import keep_stacks

PROGRAMS = Path(__file__).with_name("programs")
RANKS = 2
STOCK_LIMIT_S = 150.0
ORPHAN_S = 5.0
_LOOK_S = 0.02
_IDLE_S = 0.5
_TEMPLATE = "taskd.python.template"
"""Part of the command line of the template, and of each standby that it forks."""
_COLD = re.compile(r"cold starts? only|no warm")
"""taskd's report that there will be no standby."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TORCHRUN = ("torchrun",)
MODULE = ("python", "-m", "torch.distributed.run")
BESIDE, TARGET, TWICE = "beside", "target", "twice"
"""Location of the wheel: beside torch, in a folder that only PYTHONPATH names, or in both."""


@dataclass(frozen=True)
class Place:
    """Surroundings and command of a job.

    In `env` and `options` {port} stands for a free port, {job} for the job's folder, {host} for this machine's name.
    """

    shell: str = ""
    unshare: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = TORCHRUN
    by_taskd: tuple[str, ...] = ()
    """Command in place of `torchrun` with taskd, if it is another."""
    installed: str = BESIDE
    rootfs: Suite | None = None
    memory_bytes: int = 0
    """Limit of the memory of all processes together, in bytes; 0: none."""
    during: Callable[[Path], None] | None = None
    """Event in the job's folder while all ranks wait."""


@dataclass(frozen=True)
class Job:
    """A training in a place, as a trial."""

    place: Place = field(default_factory=Place)
    wanted: Wanted = field(default_factory=Wanted)

    def play(self, stage: Stage, folder: Path) -> Found:
        """Run the job twice. Return the respects in which taskd is worse, and facts for the line of JSON."""
        place, wanted = self.place, self.wanted
        taskd = stage.stock if place.installed == TARGET else stage.taskd
        target = stage.target.folder if place.installed in (TARGET, TWICE) else None
        root = stage.rootfs(place.rootfs) if place.rootfs else None
        first = run(place, stage.stock, folder / "s", limit_s=STOCK_LIMIT_S, root=root)
        second = run(
            place,
            taskd,
            folder / "t",
            limit_s=limit_s(first),
            root=root,
            with_taskd=True,
            off=wanted.off,
            target=target,
        )
        facts = {
            "stock": {"status": first.status, "seconds": round(first.seconds, 1)},
            "taskd": {
                "status": second.status,
                "seconds": round(second.seconds, 1),
                "killed": second.died,
                "warm": bool(re.search(r"\(warm\)", second.console)),
            },
        }
        return judge(first, second, wanted), facts


def run(
    place: Place,
    made: Installation,
    folder: Path,
    *,
    limit_s: float,
    root: Path | None = None,
    with_taskd: bool = False,
    off: bool = False,
    target: Path | None = None,
) -> Outcome:
    """Run the job once, with its files in `folder`."""
    job = folder / "job"
    for path in (job, folder / "tmp", folder / "shm"):
        path.mkdir(parents=True)
        path.chmod(0o1777)
    shutil.copy(PROGRAMS / "train.py", job)
    mark = uuid.uuid4().hex
    words = {"port": str(free_port()), "job": str(job), "host": socket.gethostname()}
    torchrun = place.by_taskd if with_taskd and place.by_taskd else place.torchrun
    options = [option.format_map(words) for option in (f"--nproc-per-node={RANKS}", "--max-restarts=3", *place.options)]
    flavour = "sdk" if with_taskd else "plain"
    command = [*torchrun, *options, str(job / "train.py"), str(job), flavour]
    switched = {"TASKD_PROCESS_ENABLE": "on"} if with_taskd and not off else {}
    env = {
        "PATH": f"{made.folder / 'bin'}:{_PATH}",
        "HOME": str(Path.home()),
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        MARK: mark,
        **_words(made, folder, root),
        **switched,
        **{name: value.format_map(words) for name, value in place.env.items()},
    }
    if with_taskd and target:
        env["PYTHONPATH"] = str(target)
    launcher = Launcher(folder, mark)
    nothing: dict[str, str | None] = dict.fromkeys(os.environ)
    begun_s = time.monotonic()
    outcome = Outcome()
    with _memory(place.memory_bytes, mark) as group:
        env["BARE_CGROUP"] = str(group)
        process = launcher.start(container(place.unshare, place.shell, command), env={**nothing, **env}, cwd=job)

        def console() -> str:
            """Return the output so far, in the same words for both installations."""
            return launcher.output(process).replace(str(folder), "{folder}").replace(str(made.folder), "{venv}")

        try:
            _watch(process, outcome, console, job, place, limit_s, mark=mark, kills=bool(switched))
            outcome.seconds = time.monotonic() - begun_s
            if outcome.status is None:
                keep_stacks(mark, folder)
            else:
                outcome.orphans = _orphans(mark)
        finally:
            with (folder / "report.txt").open("w") as report:
                launcher.end_all(report)
    outcome.console = console()
    _read(outcome, job, folder)
    return outcome


def container(unshare: tuple[str, ...], shell: str, command: list[str]) -> list[str]:
    """Return the command that makes the environment, and then becomes `command`."""
    namespaces = ["unshare", *unshare, "--"] if unshare else []
    return [*namespaces, "bash", "-c", f'set -e\n{shell}\nexec "$@"', "bare", *command]


def _memory(size_bytes: int, name: str) -> AbstractContextManager[Path]:
    """Yield the file through which a pid enters a cgroup with this limit of memory."""
    return cgroups.small(f"bare-{name[:8]}", size_bytes) if size_bytes else nullcontext(Path(os.devnull))


def _words(made: Installation, folder: Path, root: Path | None) -> dict[str, str]:
    """Return the variables for snippets."""
    return {
        "BARE_ROOT": str(root or "/"),
        "BARE_GATE": str(made.gate),
        "BARE_FOLDER": str(folder),
        "BARE_SITE": str(made.site_packages),
        "BARE_VENV": str(made.folder),
        "BARE_BASE": sys.base_prefix,
        "BARE_CLOSED": _closed(Path(sys.base_prefix)),
        "BARE_PROGRAMS": str(PROGRAMS),
    }


def _closed(path: Path) -> str:
    """Return the topmost folder on the path that other users may not enter; "" if they may enter all."""
    return next((str(one) for one in [*reversed(path.parents), path] if not one.stat().st_mode & 0o001), "")


def _watch(
    process: "subprocess.Popen[bytes]",
    outcome: Outcome,
    console: Callable[[], str],
    job: Path,
    place: Place,
    limit_s: float,
    *,
    mark: str,
    kills: bool,
) -> None:
    """Follow the job to its end or its limit. Give the ranks their order when they and a standby wait for it."""
    end_s = time.monotonic() + limit_s
    started = ordered = False
    standby = _Standby(mark, limit_s / 2)
    while (status := process.poll()) is None and time.monotonic() < end_s:
        if not started and any(job.glob("started-*")):
            started, outcome.before_start = True, console()
        waiting = not ordered and len({path.name.split("-")[1] for path in job.glob("here-*")}) == RANKS
        if waiting and (not kills or standby.is_ready(console())):
            outcome.before_order = console()
            if place.during:
                place.during(job.parent)
            die = kills and claims_protection(outcome.before_order)
            (job / "order.new").write_text("die" if die else "on")
            (job / "order.new").rename(job / "order")
            ordered = True
        time.sleep(_LOOK_S)
    outcome.status = status


class _Standby:
    """Detects from outside, up to a limit, that a standby waits: it exists, and has used no more processor time."""

    def __init__(self, mark: str, limit_s: float) -> None:
        self._mark = mark
        self._end_s = time.monotonic() + limit_s
        self._worked: dict[int, str] = {}
        self._since_s = 0.0

    def is_ready(self, console: str) -> bool:
        """Return whether a standby is ready, or none is to be expected."""
        now_s = time.monotonic()
        if now_s > self._end_s or _COLD.search(console) or not claims_protection(console):
            return True
        worked = {pid: _worked(pid) for pid in marked(self._mark) if _TEMPLATE in command_of(pid)}
        if worked != self._worked:
            self._worked, self._since_s = worked, now_s
        return len(worked) > 1 and now_s - self._since_s > _IDLE_S


def _worked(pid: int) -> str:
    """Return the processor time of a process, in the kernel's own format."""
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    except OSError:
        return ""


def _read(outcome: Outcome, job: Path, folder: Path) -> None:
    """Collect the reports of the ranks."""
    outcome.started = [
        (int(name[1]), int(name[2])) for name in (path.name.split("-") for path in job.glob("started-*"))
    ]
    outcome.results = {
        int(path.name.split("-")[1]): json.loads(path.read_text().replace(str(folder), "{folder}"))
        for path in job.glob("result-*")
    }
    outcome.ghosts = len(list(job.glob("ghost-*")))
    outcome.died = (job / "died").exists()
    outcome.leftovers = sorted(path.name for path in (folder / "shm").iterdir())


def _orphans(mark: str) -> list[str]:
    end_s = time.monotonic() + ORPHAN_S
    while (left := marked(mark)) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return [f"{pid} {command_of(pid)[:100]}" for pid in left]
