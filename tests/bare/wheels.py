"""The wheel itself: its tag, its description, its commands without torch, doctor's report, and warnings."""

import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.bare.installation import Installation, make_installation
from tests.bare.job import PROGRAMS
from tests.bare.stage import Environment, Found, Stage

_LIMIT_S = 120
_PATCHING = (("status", 1, False), ("apply", 0, True), ("apply", 0, True), ("status", 0, True), ("revert", 0, False))
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Check:
    """A function of stage and folder, as a trial."""

    check: Callable[[Stage, Path], Found]

    def play(self, stage: Stage, folder: Path) -> Found:
        """Call the function."""
        return self.check(stage, folder)


def _call(made: Installation, *command: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of an installation in a clean environment."""
    return subprocess.run(
        command,
        env={"PATH": f"{made.folder / 'bin'}:{_PATH}", "HOME": str(folder), "TMPDIR": str(folder), **env},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )


def _check_tag(stage: Stage, folder: Path) -> Found:
    """Check that the tag's glibc suits every library in the wheel, and is no later than that of torch's wheel."""
    tag = re.search(r"manylinux_2_(\d+)_", stage.wheel.name)
    with zipfile.ZipFile(stage.wheel) as wheel:
        wheel.extractall(folder)
    needed = {}
    for library in folder.rglob("*.so"):
        shown = subprocess.run(["readelf", "-VW", library], capture_output=True, text=True, check=True).stdout
        needed[library.name] = max((int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", shown)), default=0)
    facts = {"wheel": stage.wheel.name, "needs": needed}
    if not tag:
        return [f"{stage.wheel.name} names no glibc, its libraries need 2.{max(needed.values())}"], facts
    wrong = [f"{name} needs glibc 2.{minor}" for name, minor in needed.items() if minor > int(tag[1])]
    if needed["libtaskd.so"]:
        wrong.append(f"libtaskd.so needs glibc 2.{needed['libtaskd.so']}, expected no version")
    torchs = re.search(r"manylinux_2_(\d+)_", metadata.distribution("torch").read_text("WHEEL") or "")
    if torchs and int(torchs[1]) < int(tag[1]):
        wrong.append(f"the wheel needs glibc 2.{tag[1]}, torch's wheel 2.{torchs[1]}")
    return wrong, facts


def _check_description(stage: Stage, _folder: Path) -> Found:
    with zipfile.ZipFile(stage.wheel) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        text = wheel.read(name).decode()
    relative = re.findall(r"\]\((?!https?://|#)([^)]+)\)", text)
    wrong = [f"{len(relative)} links of the description lead nowhere: {', '.join(relative[:3])}"] if relative else []
    return wrong, {"links": len(relative)}


def _check_without_torch(stage: Stage, folder: Path) -> Found:
    wrong = []
    for command in (("run", "train.py"), ("doctor",)):
        done = _call(stage.alone, "taskd", *command, folder=folder)
        lines = (done.stdout + done.stderr).splitlines()
        if "Traceback" in done.stdout + done.stderr or done.returncode == 0:
            wrong.append(
                f"`taskd {command[0]}` ends with {done.returncode}: {lines[-1] if lines else 'nothing printed'}"
            )
        elif command[0] == "run" and (done.returncode != 1 or len(lines) > 1 or "torch" not in done.stderr):
            wrong.append(f"`taskd run` ends with {done.returncode} and {len(lines)} lines: {lines[:1]}")
    return wrong, {}


def _check_patch(stage: Stage, folder: Path) -> Found:
    """Check that `taskd patch` applies README's line to torchrun, reports it, and reverts it to the byte."""
    made = make_installation(folder / "venv", ["torch"], stage.wheel)
    run_py = made.site_packages / "torch/distributed/run.py"
    before = run_py.read_bytes()
    wrong = []
    for action, status, patched in (*_PATCHING, *_PATCHING):
        done = _call(made, "taskd", "patch", action, folder=folder)
        if done.returncode != status:
            words = (done.stderr or done.stdout).strip().splitlines()
            wrong.append(f"`taskd patch {action}` ends with {done.returncode}, expected {status}: {words[:1]}")
        if (b"taskd.python.adaptor.patch" in run_py.read_bytes()) is not patched:
            wrong.append(f"after `taskd patch {action}` the line is {'missing' if patched else 'there'}")
    if run_py.read_bytes() != before:
        wrong.append("after `taskd patch revert` run.py is another than before")
    return wrong[:3], {}


def _check_doctor(stage: Stage, folder: Path) -> Found:
    """Check that doctor reports MASTER_ADDR and the least kernel and glibc, and finds a bare installation healthy."""
    done = _call(stage.taskd, "taskd", "doctor", folder=folder, MASTER_ADDR="127.0.0.1")
    text = done.stdout + done.stderr
    wrong = [
        f"doctor reports nothing of {word}"
        for word in ("Linux|kernel", "glibc", "MASTER_ADDR")
        if not re.search(word, text)
    ]
    if done.returncode or "Traceback" in done.stderr:
        wrong.append(f"doctor ends with {done.returncode}: {done.stdout[-200:]}{done.stderr[-200:]}")
    return wrong, {}


def _check_warnings(stage: Stage, folder: Path) -> Found:
    """Check that a script's warnings name the same lines as under stock torchrun, as often."""
    script = folder / "warn.py"
    script.write_bytes((PROGRAMS / "warn.py").read_bytes())
    seen = []
    for made, switched in ((stage.stock, {}), (stage.taskd, {"TASKD_PROCESS_ENABLE": "on"})):
        done = _call(made, "torchrun", "--nproc-per-node=1", str(script), folder=folder, LANG="C.UTF-8", **switched)
        text = done.stderr.replace(str(made.folder), "{venv}").replace(str(folder), "{folder}")
        seen.append(sorted(re.findall(r"^\S+\.py:\d+: \w*Warning: .*", text, re.MULTILINE)))
        if done.returncode or not seen[-1]:
            return [f"ends with {done.returncode} and {len(seen[-1])} warnings: {done.stderr[-300:]}"], {}
    stock, taskd = seen
    wrong = [f"with taskd alone: {line[:200]}" for line in taskd if taskd.count(line) > stock.count(line)]
    wrong += [f"missing with taskd: {line[:200]}" for line in stock if stock.count(line) > taskd.count(line)]
    return list(dict.fromkeys(wrong))[:4], {"warnings": len(stock)}


WHEELS = (
    Environment("wheel's tag", "B7", "names the glibc that its libraries need", Check(_check_tag)),
    Environment("wheel's description", "B10", "has no relative links", Check(_check_description)),
    Environment("no torch", "B10", "the wheel alone: `taskd run` is one line", Check(_check_without_torch)),
    Environment("taskd patch", "B10", "in an installation of the wheel", Check(_check_patch)),
    Environment("doctor", "B10", "kernel, glibc and MASTER_ADDR", Check(_check_doctor)),
    Environment("warnings", "B11", "lines and counts as under stock torchrun", Check(_check_warnings)),
)
