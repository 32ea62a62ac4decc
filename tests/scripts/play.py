"""One run of a script under torchrun, with taskd or without, with kills or without, and all of its results.

Rules:

1. A run is limited: one that goes on for `LIMIT_S` hangs. The stacks of its ranks are kept then.
2. No process of a run outlives it. Processes that are left `ORPHAN_S` after torchrun's end are reported.
"""

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.e2e.job import ROOT, command_of, no_outer_job
from tests.faults.cgroups import small
from tests.launch import Launcher, free_port
from tests.leaks import MARK, marked
from tests.scripts.catalog import Script
from tests.scripts.kills import Kill

LIMIT_S = 150.0
ORPHAN_S = 10.0
NO_CHECKS: Mapping[str, str] = MappingProxyType({})


@dataclass
class Run:
    """Result of one run."""

    folder: Path
    status: int | None = None
    seconds: float = 0.0
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    saw: dict[int, dict[str, Any]] = field(default_factory=dict)
    moments: dict[int, list[str]] = field(default_factory=dict)
    killed: list[tuple[int, str]] = field(default_factory=list)
    """Rank and moment of each kill that was done."""
    events: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    @property
    def hung(self) -> bool:
        """True if it did not end."""
        return self.status is None

    @property
    def output(self) -> str:
        """Output of torchrun and its ranks."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output-*")))

    @property
    def said_before(self) -> str:
        """Output before the first kill that found a step under way; "" if there was none."""
        sizes = [int(path.read_text()) for path in self.folder.glob("said-*")]
        whole = b"".join(path.read_bytes() for path in sorted(self.folder.glob("output-*")))
        return whole[: min(sizes, default=0)].decode(errors="replace")

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's events of that name."""
        return [entry for entry in self.events if entry["event"] == event]


def play(
    script: Script,
    folder: Path,
    *,
    taskd: bool,
    kills: Sequence[Kill] = (),
    limit_s: float = LIMIT_S,
    checks: Mapping[str, str] = NO_CHECKS,
) -> Run:
    """Run a script once, with its files in `folder`, for at most so long, with `checks` in taskd's environment."""
    folder.mkdir(parents=True)
    mark = uuid.uuid4().hex
    launcher = Launcher(folder, mark)
    run_dir = Path(tempfile.mkdtemp(prefix="taskd-"))  # short, for sockets
    env = _environment(folder, kills, run_dir if taskd else None)
    env |= dict(checks) if taskd else {}
    command = ["python", "-m", "torch.distributed.run", f"--nproc-per-node={script.ranks // script.nodes}"]
    command += [
        f"--max-restarts={script.restarts if taskd or kills else 0}",
        "--monitor-interval=0.1",
        *script.options,
        str(script.path),
    ]
    begun_s = time.monotonic()
    run = Run(folder)
    try:
        env |= {**dict(script.environment), MARK: mark}
        with _container(script, mark) as inside:
            if script.launch == "python":
                torchruns = [launcher.start(["python", str(script.path)], env=env)]
            elif script.nodes == 1:
                whole = [*inside, sys.executable, *command[1:3], "--standalone", *command[3:]]
                torchruns = [launcher.start(whole, env=env)]
            else:
                torchruns = _nodes(launcher, script, command, env, manager=taskd)
            run.status = max(torchrun.wait(limit_s) for torchrun in torchruns)
            run.orphans = _orphans(mark)
    except subprocess.TimeoutExpired:
        keep_stacks(mark, folder)
    finally:
        with (folder / "report.txt").open("w") as report, redirect_stdout(report):
            launcher.end_all()
        _keep_journal(run_dir, folder / "run")
    run.seconds = time.monotonic() - begun_s
    _read(run, script.ranks)
    for kill in kills:
        if reached := kill.reached(run.moments[kill.rank]):
            later = f" + {kill.delay_us} us" if kill.delay_us else ""
            run.killed.append((kill.rank, reached + later))
    return run


@contextmanager
def _container(script: Script, name: str) -> Iterator[list[str]]:
    """Yield the words before a command that is to run in the script's container."""
    if not script.memory_mib:
        yield []
        return
    with small(f"taskd-script-{name}", script.memory_mib << 20) as procs:
        yield ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh"]


def _nodes(
    launcher: Launcher, script: Script, command: list[str], env: dict[str, str | None], *, manager: bool
) -> "list[subprocess.Popen[bytes]]":
    """Start a torchrun for each node, and the manager."""
    port, manager_port = free_port(), free_port()
    if manager:
        env |= {"TASKD_MANAGER": f"127.0.0.1:{manager_port}", "TASKD_SECRET": secrets.token_hex(16)}
    torchruns = []
    for node in range(script.nodes):
        where = [f"--nnodes={script.nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        torchruns.append(launcher.start([*command[:3], *where, *command[3:]], env=env))
    if manager:
        sizes = ["--nodes", str(script.nodes), "--procs-per-node", str(script.ranks // script.nodes)]
        launcher.start(
            ["python", "-m", "taskd", "manager", *sizes],
            env={**env, "TASKD_MANAGER_PORT": str(manager_port), "TASKD_MANAGER_HOST": "127.0.0.1"},
        )
    return torchruns


def reread(folder: Path, ranks: int) -> Run:
    """Return a former run. It ended well if each rank has left its result."""
    run = Run(folder)
    _read(run, ranks)
    run.status = 0 if len(run.results) == ranks else 1
    return run


def _environment(folder: Path, kills: Sequence[Kill], run_dir: Path | None) -> dict[str, str | None]:
    ours = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir)} if run_dir else {}
    usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    return {**no_outer_job(), **ours, **usual, "SCRIPT_FOLDER": str(folder), "SCRIPT_KILLS": ",".join(map(str, kills))}


def _keep_journal(run_dir: Path, kept: Path) -> None:
    for path in run_dir.rglob("*.json*"):
        target = kept / path.relative_to(run_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.rmtree(run_dir)


def _orphans(mark: str) -> list[str]:
    end_s = time.monotonic() + ORPHAN_S
    while (left := marked(mark)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return [f"{pid} {command_of(pid)[:120]}" for pid in left]


def keep_stacks(mark: str, folder: Path) -> None:
    """Write the stacks of all processes of a job into its folder."""
    spy = Path(sys.executable).with_name("py-spy")
    with (folder / "stacks.txt").open("w") as file:
        for pid in marked(mark):
            file.write(f"--- {pid} {command_of(pid)[:160]}\n")
            file.flush()
            if spy.exists():
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run([spy, "dump", "--pid", str(pid)], stdout=file, stderr=file, timeout=20, check=False)


def _read(run: Run, ranks: int) -> None:
    for rank in range(ranks):
        result, saw = run.folder / f"result-{rank}", run.folder / f"saw-{rank}"
        if result.exists():
            run.results[rank] = json.loads(result.read_text() or "{}")
        lines = saw.read_text().splitlines() if saw.exists() else []
        run.saw[rank] = dict(json.loads(line) for line in lines if line.endswith("]"))
        moments = run.folder / f"moments-{rank}"
        run.moments[rank] = (
            [line.split(" ", 1)[1].strip() for line in moments.read_text().splitlines()] if moments.exists() else []
        )
    for journal in sorted(run.folder.glob("run/**/journal.jsonl")):
        run.events += [json.loads(line) for line in journal.read_text().splitlines()]
