"""Objects that a job finds at its start: foreign checkpoints, locks of killed builds, damaged installations."""

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import taskd
from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.checkpoint import dump
from tests.attacks.job import PROGRAM, Attack, AttackedJob
from tests.attacks.model import make
from tests.attacks.outsiders import nothing
from tests.e2e.job import ROOT
from tests.shim.armed import CORE, GATE

_WRITER, _BEFORE = "who may write to the checkpoints", "a job before this one"
_STEP = 99
BUILDER = ROOT / "tests" / "runtime" / "programs" / "builder.py"


class Code:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


def checkpoint(job: AttackedJob, spoil: Callable[[Path, Path], None]) -> None:
    """Write a checkpoint that fits the job, and let `spoil` damage its directory. Its code may try to make a folder."""
    model, optimizer = make()
    state = taskd.TrainState(model=model, optimizer=optimizer)
    state.step = _STEP
    shelf = job.folder / "checkpoints"
    dump(state._recovery, shelf, step=_STEP, job_id="default", reason="")
    spoil(shelf / f"step-{_STEP}", job.folder / "owned")
    job.env |= {"ATTACK_CHECKPOINTS": str(shelf)}


def replace(directory: Path, name: str, data: bytes) -> None:
    """Write another file, and enter it in the manifest."""
    (directory / name).write_bytes(data)
    manifest = json.loads((directory / files.MANIFEST).read_bytes())
    manifest["files"][name] = len(data)
    (directory / files.MANIFEST).write_text(json.dumps(manifest))


def code_in_the_index(directory: Path, owned: Path) -> None:
    """Put code into the index, which torch's own reader unpickles."""
    replace(directory, ".metadata", pickle.dumps(Code(owned)))


def code_in_the_tensors(directory: Path, owned: Path) -> None:
    """Put an object instead of tensors into each data file."""
    data = io.BytesIO()
    torch.save(Code(owned), data)
    for path in directory.glob("*.distcp"):
        whole = data.getvalue()
        replace(directory, path.name, whole + bytes(max(0, path.stat().st_size - len(whole))))


def a_pipe_as_manifest(directory: Path, _owned: Path) -> None:
    """Make the manifest a pipe: a process that opens it waits for ever."""
    (directory / files.MANIFEST).unlink()
    os.mkfifo(directory / files.MANIFEST)


def names_that_lead_elsewhere(directory: Path, _owned: Path) -> None:
    """Enter one of the user's files in the manifest as a file of the checkpoint."""
    manifest = json.loads((directory / files.MANIFEST).read_bytes())
    manifest["files"]["../../program"] = 1
    (directory / files.MANIFEST).write_text(json.dumps(manifest))


def nothing_was_run(job: AttackedJob) -> None:
    """Check that no code ran. Both ranks have inspected the checkpoints by now."""
    assert not (job.folder / "owned").exists()


def killed_build(job: AttackedJob) -> None:
    """Kill a process with taskd while it builds the extension that this job needs. Its lock remains."""
    folder = job.folder / "ext"
    folder.mkdir()
    command = [sys.executable, str(BUILDER), str(folder / "lock"), "watched"]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, start_new_session=True) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline().split()[0] for _ in range(2)] == [b"begins", b"builds"]
        owner.send_signal(signal.SIGKILL)
    job.env |= {"ATTACK_EXTENSION": str(folder / "ext.so")}


def cut_install(job: AttackedJob, library: Path) -> None:
    """Give the job a copy of taskd that was made on a full disk: one library is cut short."""
    folder = job.folder / "install"
    shutil.copytree(Path(taskd.__file__).parent, folder / "taskd", ignore=shutil.ignore_patterns("__pycache__"))
    copied = next((folder / "taskd").rglob(library.name))
    os.truncate(copied, 5000)
    job.env |= {"PYTHONPATH": f"{folder}:{PROGRAM.parents[2]}", "PYTHONDONTWRITEBYTECODE": "1"}


def passed_over(name: str, spoil: Callable[[Path, Path], None]) -> Attack:
    """Return an attack by a checkpoint that no rank loads, and whose code never runs."""
    return Attack(
        name, _WRITER, nothing_was_run, prepare=lambda job: checkpoint(job, spoil), manager=False,
        log=f"step-{_STEP} is passed over",
    )  # fmt: skip


LEFTOVERS = (
    passed_over("code in a checkpoint's index", code_in_the_index),
    passed_over("code in a checkpoint's tensors", code_in_the_tensors),
    passed_over("a pipe as a checkpoint's manifest", a_pipe_as_manifest),
    passed_over("a checkpoint whose files are elsewhere", names_that_lead_elsewhere),
    Attack(
        "the lock of a killed build", _BEFORE, nothing, prepare=killed_build, manager=False,
        log="the stale lock .* was removed",
    ),
    Attack(
        "a core that was cut short", _BEFORE, nothing, prepare=lambda job: cut_install(job, CORE), manager=False,
        log="reinstall taskd",
    ),
    Attack(
        "a preloaded library that was cut short", _BEFORE, nothing, prepare=lambda job: cut_install(job, GATE),
        manager=False, log="reinstall taskd",
    ),
)  # fmt: skip
