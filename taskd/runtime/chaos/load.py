"""Load on this node: processes that keep its CPUs busy, memory that is taken, a disk that is filled.

Rules:

1. Only children of this process make the load. The kernel kills them when it dies (PR_SET_PDEATHSIG), so none outlives
   it.
2. They run where the job runs: on its CPUs, in its cgroups. A child that cannot enter one stays outside, with a printed
   line.
3. A file that takes space has no name: the kernel frees it when the process ends, however it ends.
4. The kernel kills the child that takes memory first (`oom_score_adj` 1000), unless the scenario allows any victim.
"""

import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from taskd.errors import ChaosError
from taskd.runtime.chaos.scenario_run import ENDING
from taskd.runtime.chaos.target import open_handle
from taskd.runtime.system.cgroups import cgroup_directories
from taskd.runtime.system.pidfd import signal_pidfd
from taskd.runtime.system.processes import call_me, end_with

MIB: Final = 1 << 20
_TURN_S: Final = 0.1
_FIRST_VICTIM: Final = "1000"


@dataclass(frozen=True, slots=True)
class LoadProcess:
    """A child that makes load. `handle` is its pidfd; `outside` are the job's cgroups that it could not enter."""

    pid: int
    handle: int
    outside: tuple[str, ...]

    def end(self) -> float:
        """Kill and collect it. Returns the seconds of processor time that it has used."""
        signal_pidfd(self.handle, signal.SIGKILL)  # a zombie takes it too
        used = os.wait4(self.pid, 0)[2]
        os.close(self.handle)
        return used.ru_utime + used.ru_stime


def start_child(name: str, work: Callable[[], object], beside: int) -> LoadProcess:
    """Start a child that does `work` in the cgroups of the process `beside`, and ends with this one."""
    parent, (gate, key) = os.getpid(), os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(key)
        _live(name, work, parent, gate)
    os.close(gate)
    try:
        return LoadProcess(pid, open_handle(pid), tuple(share_cgroups(pid, beside)))
    finally:
        os.close(key)


def _live(name: str, work: Callable[[], object], parent: int, gate: int) -> NoReturn:
    status = 1
    try:
        call_me(name)
        if not end_with(parent):
            os._exit(status)
        os.setsid()  # Ctrl-C is for the scenario, which ends this process
        signal.set_wakeup_fd(-1)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        os.read(gate, 1)  # until it is in the job's cgroups
        work()
        status = 0
    finally:
        os._exit(status)


def keep_busy(share: float, cpu: int) -> None:
    """Use this share of one CPU, as far as the kernel grants it."""
    os.sched_setaffinity(0, {cpu})
    while True:
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + share * _TURN_S:
            pass
        time.sleep((1 - share) * _TURN_S)


def take_memory(size_bytes: int, ready: int, *, first_victim: bool) -> None:
    """Take so much memory, write one byte to `ready` when it is there, and keep it."""
    if first_victim:
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
    block = mmap.mmap(-1, size_bytes)
    for at in range(0, size_bytes, mmap.PAGESIZE):
        block[at] = 1
    os.write(ready, b"\n")
    while True:
        signal.pause()


def take_disk(directory: Path, size_bytes: int) -> int:
    """Open a file without a name that takes so much space; closing it gives the space back. Raises `ChaosError`."""
    try:
        handle, path = tempfile.mkstemp(prefix=".taskd-chaos-", dir=directory)
        os.unlink(path)
    except OSError as error:
        raise ChaosError(f"no file can be made in {directory}: {error.strerror}") from error
    try:
        os.posix_fallocate(handle, 0, size_bytes)
    except OSError as error:
        os.close(handle)
        raise ChaosError(f"{directory} cannot give {size_bytes // MIB} MiB: {error.strerror}; ask for less") from error
    return handle


def share_cgroups(pid: int, other: int) -> list[str]:
    """Put a child of this process into the cgroups of another process. Returns those that refused it."""
    refused = []
    mine = set(cgroup_directories(pid))
    for directory in cgroup_directories(other):
        if directory not in mine:
            try:
                Path(directory, "cgroup.procs").write_text(str(pid))
            except OSError as error:
                refused.append(f"{directory} ({error.strerror})")
    return refused


def cpus_of(pid: int) -> list[int]:
    """Return the CPUs that a process may use."""
    try:
        return sorted(os.sched_getaffinity(pid))
    except ProcessLookupError:
        return []
