"""One run of a rehearsal: a torchrun of its own, which is ended when all its ranks are done.

Rules:

1. It inherits nothing of a job around it, and no manager: all its effects stay on this machine.
2. However it ends, no process of it stays: those that carry the rehearsal's folder in their environment are killed. If
   this process itself is killed, the kernel signals torchrun to end.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taskd.config.process import environment
from taskd.config.settings import PREFIX
from taskd.core.rehearsal.records import RankRecord
from taskd.runtime.rehearsal.order import RehearsalOrder
from taskd.runtime.rehearsal.workspace import Workspace
from taskd.runtime.system.processes import end_with

_LOOK_S: Final = 0.02
_END_S: Final = 15.0
_FOREIGN: Final = ("TORCHELASTIC_", "TORCH_DIST_", "GROUP_", "ROLE_", "MASTER_", "PET_")
_FOREIGN_NAMES: Final = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LD_PRELOAD"))
_KEPT: Final = 4000
_RESTARTS: Final = 32_767


@dataclass
class RehearsedRun:
    """Result of one run."""

    records: dict[int, RankRecord]
    status: int | None = None
    """Exit status of torchrun; None if it was ended because all ranks were done, or for its time."""
    late: bool = False
    seconds: float = 0.0
    output: str = ""
    recoveries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """True if the run went as far as it should."""
        return not self.late and not self.status


class RehearsalJob:
    """Runs of one script.

    Args:
        workspace: folder of the runs.
        options: torchrun's options.
        program: the script and its arguments.
        ranks: number of ranks.
        limit_s: limit of each run, in seconds.
    """

    def __init__(
        self, workspace: Workspace, options: Sequence[str], program: Sequence[str], ranks: int, limit_s: float
    ) -> None:
        self._workspace, self._options, self._program = workspace, options, program
        self._ranks, self._limit_s = ranks, limit_s

    def run(self, order: RehearsalOrder, *, taskd: bool, more_s: float = 0.0) -> RehearsedRun:
        """Run the script once, with taskd or under stock torchrun. It may take `more_s` longer than usual."""
        place = self._workspace
        place.prepare()
        order.write(place.folder)
        launcher = ["taskd", "run"] if taskd else ["torch.distributed.run"]
        restarts = f"--max-restarts={_RESTARTS if taskd else 0}"  # stock torchrun would restart a failed script
        begun_s = time.monotonic()
        run = RehearsedRun({})
        with place.output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", *launcher, *self._options, restarts, *self._program],
                env=_environment(place, taskd=taskd),
                cwd=place.work,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                preexec_fn=functools.partial(end_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 - one thread
            )
            try:
                run.status, run.late = self._await(process, self._limit_s + more_s)
            finally:
                _end(process, str(place.folder))
        run.seconds = time.monotonic() - begun_s
        run.output = place.output.read_text(errors="replace")
        run.records = place.records(self._ranks)
        for journal in sorted(place.run_dir.rglob("journal.jsonl")):
            entries = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
            run.recoveries += [entry for entry in entries if entry.get("event") == "recovered"]
        return run

    def _await(self, process: "subprocess.Popen[bytes]", limit_s: float) -> tuple[int | None, bool]:
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if self._workspace.done(self._ranks):
                return None, False
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S), False
        return None, True


def _environment(place: Workspace, *, taskd: bool) -> dict[str, str]:
    outer = environment()
    kept = {name: value for name, value in outer.items() if not _is_foreign(name)}
    path = [str(place.folder), *(entry for entry in outer.get("PYTHONPATH", "").split(os.pathsep) if entry)]
    names = {"RUN_DIR": str(place.run_dir), "MANAGER": "embedded", "INEXACT": "allow"}
    ours = {PREFIX + name: value for name, value in names.items()} if taskd else {}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **ours}


def _is_foreign(name: str) -> bool:
    return name.startswith((PREFIX, *_FOREIGN)) or name in _FOREIGN_NAMES


def _end(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Ask torchrun to end, which ends its ranks, and kill the processes that are left."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    end_s = time.monotonic() + _END_S
    while process.poll() is None or _marked(mark):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in _marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end_s:
            break
        time.sleep(_LOOK_S)


def _marked(mark: str) -> list[int]:
    """Return the processes of this user that were started with the rehearsal's folder in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            with suppress(OSError):
                if mark.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
    return found


def last_lines(output: str) -> str:
    """Return the end of the output, for a run that has failed."""
    return output[-_KEPT:]
