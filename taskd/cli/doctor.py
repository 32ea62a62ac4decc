"""`taskd doctor`: check whether taskd is installed and fits the installed torch, and show what is switched on.

Rules:

1. Every finding states what was found. A problem also states the remedy. Nothing is changed.
2. The secret is never shown.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from taskd.adaptors.torchrun.launcher import PATCH_MODULE, has_plugin, sed_lines, torchrun_file
from taskd.config.agent import AgentConfig
from taskd.config.process import environment
from taskd.config.settings import PREFIX, SECRET, SELF_CHECK, SETTINGS, unknown_variables
from taskd.config.switch import is_enabled
from taskd.core.descriptors import needed_descriptors, plan_descriptors
from taskd.core.requirements import LEAST_GLIBC, LEAST_KERNEL, too_old
from taskd.errors import TaskdError
from taskd.runtime.folders.rank_folders import SHARED_MEMORY, free_shared_memory
from taskd.runtime.records.selfcheck import CheckOutcome
from taskd.runtime.records.timeline import read_jobs
from taskd.runtime.system.descriptors import descriptor_limits
from taskd.wire.text import line

_TRIAL = "/bin/true"
_TORCHRUN_DESCRIPTORS = 14
"""Descriptors that torchrun has open when taskd counts them."""
_FITS = "fits torch"
_REMEDY = "install a taskd for this torch, or one of the torches in docs/torch-versions.md"


@dataclass(frozen=True)
class DoctorLine:
    """One line of the report. `remedy` is empty unless the line is a problem."""

    subject: str
    found: str
    remedy: str = ""

    @property
    def healthy(self) -> bool:
        """True if nothing needs to be done."""
        return not self.remedy


def doctor(arguments: Sequence[str]) -> int:
    """Print the report. Return 0 if all is well, else 1."""
    parser = argparse.ArgumentParser(prog="taskd doctor", description="Is taskd in place, does it fit, what is on.")
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", nargs="?", help="also say what its newest job found out about itself"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_args(list(arguments))
    logging.disable(logging.CRITICAL)  # the report holds every problem that would be logged
    findings = list(all_findings())
    if options.run_dir is not None:
        findings.append(_guarded("self-check", partial(_self_check, Path(options.run_dir))))
    healthy = all(finding.healthy for finding in findings)
    if options.json:
        print(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in findings]}))
    else:
        _print_table(findings)
        print("healthy" if healthy else "not healthy")
    return 0 if healthy else 1


def all_findings() -> Iterator[DoctorLine]:
    """Yield every line of the report."""
    yield DoctorLine("python", f"{sys.version.split()[0]} at {sys.executable}")
    yield from _machine()
    yield _guarded("injection", _injection)
    yield from _fit()
    yield _guarded("libtaskd.so", _gate)
    yield _guarded("core", _core)
    yield DoctorLine("switched", "on" if is_enabled() else "off: set TASKD_PROCESS_ENABLE=on (taskd run does it)")
    yield from _settings()
    yield _guarded("manager", _manager)


def _guarded(subject: str, look: Callable[[], DoctorLine]) -> DoctorLine:
    try:
        return look()
    except TaskdError as error:
        return DoctorLine(subject, "a problem", str(error))


def _machine() -> Iterator[DoctorLine]:
    """Yield the lines on kernel, C library, shared memory and descriptors."""
    kernel, library = os.uname().release, _c_library()
    old = too_old(kernel, LEAST_KERNEL)
    yield DoctorLine("kernel", old or f"Linux {kernel}", old and "boot a newer kernel: older ones are not tried")
    old = too_old(library.removeprefix("glibc"), LEAST_GLIBC)
    yield DoctorLine("C library", old or library, old and "use an image with a newer glibc: torch's wheels need it too")
    free_bytes, wrong = free_shared_memory()
    found, _, remedy = wrong.partition("; ")
    yield DoctorLine("shared memory", found or f"{free_bytes / 1e6:.0f} MB free in {SHARED_MEMORY}", remedy)
    soft, hard = descriptor_limits()
    needed = needed_descriptors(_TORCHRUN_DESCRIPTORS, 1, 1, 1, embeds=True, logs=False)
    plan = plan_descriptors(needed, soft, hard)
    remedy = plan.refusal and f"raise it with `ulimit -n {needed}` or more, more for each rank"
    yield DoctorLine("descriptors", f"soft limit {soft}, hard limit {hard}", remedy)


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # not glibc
        return ""


def _injection() -> DoctorLine:
    file, lines, plugin = torchrun_file(), sed_lines(), has_plugin()
    ways = [f"{lines} sed line(s) in {file}"] * bool(lines) + ["plugin of torchrun (entry point)"] * plugin
    if ways:
        return DoctorLine("injection", " and ".join(ways))
    return DoctorLine(
        "injection",
        "none: neither the sed line nor the plugin is there, only `taskd run` works",
        f"install taskd's wheel with {sys.executable} -m pip, or taskd patch apply (adds `import {PATCH_MODULE}`)",
    )


def _fit() -> Iterator[DoctorLine]:
    from taskd.adaptors.seams.parts import PARTS, misfits, newer
    from taskd.adaptors.seams.seam import torch_version

    if find_spec("torch") is None:
        yield DoctorLine(_FITS, f"no torch for {sys.executable}", "install torch there, or call the python that has it")
        return
    found = [
        DoctorLine(_FITS, f"torch {torch_version()}, {part.name}: {misfit}", _REMEDY) for part, misfit in misfits()
    ]
    count = sum(len(part.table) for part in PARTS)
    yield from found or [DoctorLine(_FITS, f"torch {torch_version()}: all {count} seams as expected")]
    if note := newer():
        yield DoctorLine(_FITS, note)


def _gate() -> DoctorLine:
    from taskd.runtime.box.elf import flaw
    from taskd.runtime.box.shim import library_path

    path = library_path("libtaskd.so")
    remedy = "reinstall taskd's wheel for this machine, or build it: python -m pip install -e ."
    if not path.is_file():
        return DoctorLine("libtaskd.so", f"no file at {path}", remedy)
    if wrong := flaw(path):
        return DoctorLine("libtaskd.so", f"{path} {wrong}", remedy)
    trial = subprocess.run(
        [_TRIAL],
        env={**environment(), "LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if trial.returncode or trial.stderr:
        return DoctorLine("libtaskd.so", f"{_TRIAL} under it: status {trial.returncode} {trial.stderr.strip()}", remedy)
    preloaded = str(path) in environment().get("LD_PRELOAD", "")
    return DoctorLine("libtaskd.so", f"{path} loads; {'preloaded here' if preloaded else 'the agent preloads it'}")


def _core() -> DoctorLine:
    from taskd.runtime.box.shim import core, interface

    version = core().taskd_version()
    text = version if isinstance(version, int) else interface().string(version).decode()
    return DoctorLine("core", f"version {text}")


def _settings() -> Iterator[DoctorLine]:
    env = environment()
    known = {setting.variable for setting in SETTINGS}
    for name in sorted(env):
        if name.startswith(PREFIX) and name in known:
            yield DoctorLine(name, "set, not shown" if name == SECRET.variable else env[name])
    for unknown in unknown_variables(env):
        yield DoctorLine(unknown.found, "no setting of taskd, has no effect", f"unset or correct it: {unknown.advice}")


def _manager() -> DoctorLine:
    config = AgentConfig.from_environment()
    if config.manager:
        return DoctorLine("manager", f"tcp {config.manager}")
    if config.nearby is None:
        return DoctorLine("manager", "embedded in the agent (a job of one node)")
    return DoctorLine(
        "manager",
        f"MASTER_ADDR is set: for a job of one node {config.nearby} if one answers there while the job starts, else "
        "embedded in the agent; for a job of several nodes on the host of MASTER_ADDR",
    )


def _self_check(run_dir: Path) -> DoctorLine:
    """Return the line on the self-check of the newest job in a run directory."""
    job = read_jobs(run_dir)[-1]
    verdict = job.self_check
    if verdict is None:
        why = f"it has a verdict after its third step, unless {SELF_CHECK.variable}=off"
        return DoctorLine("self-check", f"job {job.job_id}: no verdict of its last start ({why})")
    remedy = "docs/exactness.md" if verdict.outcome is CheckOutcome.NOT_EXACT else ""
    return DoctorLine("self-check", f"job {job.job_id}: {verdict.text}", remedy)


def _print_table(findings: list[DoctorLine]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "ok" if finding.healthy else "!!"
        print(line(f"{mark}  {finding.subject:<{width}}  {finding.found}"))
        if finding.remedy:
            print(line(f"    {'':<{width}}  -> {finding.remedy}"))
