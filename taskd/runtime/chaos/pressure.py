"""Scenarios that strike the node: its CPUs, its memory, its disk, its network.

Rules:

1. A scenario reports what it takes, and at its end what that was in fact.
2. An action that could hit others on this machine needs the user's consent (`sure`). The refusal names the danger and
   the option.
"""

import os
import select
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from taskd.errors import ChaosError
from taskd.runtime.chaos import network
from taskd.runtime.chaos.cleanup import Cleanup, Commands
from taskd.runtime.chaos.job import LocalJob
from taskd.runtime.chaos.load import (
    MIB,
    LoadProcess,
    cpus_of,
    keep_busy,
    start_child,
    take_disk,
    take_memory,
)  # fmt: skip
from taskd.runtime.chaos.scenario_run import ScenarioRun, say
from taskd.runtime.chaos.tools import run_tool
from taskd.runtime.system.cgroups import cgroups
from taskd.runtime.system.memory import memory_of

_RISKY_SHARE: Final = 0.95
"""Share in use from which filling needs `sure`, of a memory or a disk that others use too."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount to take: so many MiB, or until so many percent are in use."""

    mib: int | None = None
    percent: float | None = None

    def of(self, limit_bytes: int, used_bytes: int) -> int:
        """Return the amount in bytes, whole MiB. Raises `ChaosError` if so much is in use already."""
        if self.mib is not None:
            return self.mib * MIB
        assert self.percent is not None
        size = int(limit_bytes * self.percent / 100) - used_bytes
        if size < MIB:
            used = f"{100 * used_bytes / limit_bytes:.0f} %"
            raise ChaosError(f"found {used} of {limit_bytes // MIB} MiB in use, expected less than {self.percent:g} %")
        return size // MIB * MIB


def load_cpus(run: ScenarioRun, job: LocalJob, percent: float) -> None:
    """Keep all CPUs of the job busy for `percent` of the time."""
    cpus = cpus_of(job.agent.pid)
    if not run.act(f"CPUs {', '.join(map(str, cpus))}: {len(cpus)} processes keep them busy {percent:g} % of the time"):
        return
    children = [start_child("taskd-busy", partial(keep_busy, percent / 100, cpu), job.agent.pid) for cpu in cpus]
    try:
        _introduce(children)
        run.pause()
    finally:
        used_s = sum(child.end() for child in children)
        say(f"undone: {len(children)} busy processes have ended; they had {used_s:.1f} s of processor time")


def fill_memory(run: ScenarioRun, job: LocalJob, amount: Amount, *, any_victim: bool, sure: bool) -> None:
    """Take memory where the job's ranks take theirs."""
    place = cgroups(job.agent.pid)
    memory = memory_of(place.memory if place is not None else None)
    size = amount.of(memory.limit_bytes, memory.used_bytes)
    if not memory.limited and any_victim:
        raise ChaosError("--any-victim: the job's cgroup has no memory limit, the kernel could kill anybody's process")
    if not memory.limited and not sure and memory.used_bytes + size > _RISKY_SHARE * memory.limit_bytes:
        raise ChaosError(
            f"{size // MIB} MiB would leave less than 5 % of this machine's memory to all; if so, say --yes"
        )
    whose = "the job's cgroup" if memory.limited else "this machine"
    victim = "any process there" if any_victim else "this command's own process, before any other"
    told = f"takes {size // MIB} MiB of the {memory.free_bytes // MIB} MiB free in {whose}"
    if not run.act(f"{told}; if that is too much, the kernel kills {victim}"):
        return
    ready, filled = os.pipe()
    work = partial(take_memory, size, filled, first_victim=not any_victim)
    child = start_child("taskd-memory", work, job.agent.pid)
    os.close(filled)
    try:
        _introduce([child])
        _hold_memory(run, job, child, ready, size)
    finally:
        os.close(ready)
        child.end()
        say(f"undone: process {child.pid} has ended, its memory is free")


def _hold_memory(run: ScenarioRun, job: LocalJob, child: LoadProcess, ready: int, size_bytes: int) -> None:
    run.pause(None, ready)
    if run.on and os.read(ready, 1):  # nothing to read: the child has ended before it had all
        say(f"process {child.pid} has all of its {size_bytes // MIB} MiB")
    run.pause(None, child.handle)
    if _can_be_read(child.handle):
        say(f"process {child.pid} was killed for its memory (OOM)")


def fill_disk(run: ScenarioRun, directory: Path, amount: Amount, *, sure: bool) -> None:
    """Take space of a file system."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise ChaosError(
            f"found no directory {directory} ({error.strerror}), expected one: give --directory"
        ) from error
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    size = amount.of(total, total - free)
    if not sure and free - size < (1 - _RISKY_SHARE) * total:
        raise ChaosError(f"{size // MIB} MiB would leave less than 5 % of {directory}'s disk to all; if so, say --yes")
    if not run.act(f"takes {size // MIB} MiB of the {free // MIB} MiB free on the disk of {directory}"):
        return
    handle = take_disk(directory, size)
    try:
        run.pause()
    finally:
        os.close(handle)
        say(f"undone: the {size // MIB} MiB of {directory} are free")


def change_network(run: ScenarioRun, cleanup: Cleanup, steps: Sequence[network.NetworkCommand], told: str) -> None:
    """Change the network by these steps, until the scenario ends. The cleanup process undoes them."""
    if not run.act(told):
        for step in steps:
            undone = f", and at the end: {'; '.join(map(' '.join, step.undo))}" if step.undo else ""
            say(f"would run: {' '.join(step.do)}{undone}")
        return
    for step in steps:
        number = cleanup.keep(Commands(step.undo)) if step.undo else None
        try:
            run_tool(step.do)
        except ChaosError:
            if number is not None:
                cleanup.drop(number)
            raise
    run.pause()


def _introduce(children: Sequence[LoadProcess]) -> None:
    say(f"pids {', '.join(str(child.pid) for child in children)}")
    outside = sorted({directory for child in children for directory in child.outside})
    if outside:
        say(f"they are not in these cgroups of the job: {', '.join(outside)}; their load counts elsewhere")


def _can_be_read(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
