"""Leaks of a test: threads, descriptors, processes, shared memory.

Rules:

1. A census is taken before and after a test. New objects are leaks, unless Python itself keeps them for the whole run.
2. A child that has ended but was not waited for is a leak, too: it holds its pid.
3. Other processes are recognised by a mark in the environment with which they were started, so that an orphan is found
   wherever it was adopted. It gets a moment to end, for it may be about to; a child gets none.
4. Shared memory belongs to the machine. A file that names a living process without the mark is another owner's. While
   another pytest runs beside this one, the owner of a new file is unknown, and none is counted.
5. A test that leaves this process a subreaper would make later orphans its children, which no process collects.
"""

import ctypes
import gc
import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

MARK = "LEAK_CENSUS"
TIMEOUT_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_KEPT_BY_PYTHON = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True)
class Census:
    """Objects of this process at one moment."""

    threads: frozenset[threading.Thread]
    descriptors: dict[int, str]
    processes: dict[int, str]
    shared_memory: frozenset[str]
    subreaper: bool


def take(mark: str) -> Census:
    """Count the present objects. `mark` is the value of `MARK` in the environment of this test's processes."""
    shared = frozenset(path.name for path in _SHARED_MEMORY.glob("taskd*") if not _is_a_strangers(path.name, mark))
    return Census(frozenset(threading.enumerate()), _descriptors(), _processes(mark), shared, is_subreaper())


def leaks(before: Census, mark: str) -> list[str]:
    """Return a line for each present object that was not there before, and kill the processes among them."""
    deadline = time.monotonic() + TIMEOUT_S
    for thread in set(threading.enumerate()) - before.threads:
        if not isinstance(thread, threading._DummyThread):  # left by a thread that has logged; it removes itself
            thread.join(max(0.0, deadline - time.monotonic()))
    _await_orphans(set(_processes(mark)) - set(before.processes), deadline)
    found = _news(before, take(mark))
    if found:
        gc.collect()  # costs 0.1 s once torch is imported: only if unreachable objects may be the cause
        found = _news(before, take(mark))
    for pid in _processes(mark).keys() - before.processes.keys():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if is_subreaper() and not before.subreaper:
        set_subreaper(False)
    return found


def is_subreaper() -> bool:
    """Return whether this process becomes the parent of orphaned descendants."""
    answer = ctypes.c_int(0)
    return ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value != 0


def set_subreaper(wanted: bool) -> None:
    """Make this process the parent of orphaned descendants, or leave them to another one again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _news(before: Census, after: Census) -> list[str]:
    found = [f"thread {thread.name!r}" for thread in after.threads - before.threads]
    for descriptor, target in after.descriptors.items():
        if before.descriptors.get(descriptor) != target:
            found.append(f"descriptor {descriptor} -> {target}")
    found += [f"process {pid}: {after.processes[pid]}" for pid in after.processes.keys() - before.processes.keys()]
    if after.subreaper and not before.subreaper:
        found.append("this process is a subreaper")
    files = after.shared_memory - before.shared_memory
    if files and not _another_pytest_runs():
        found += [f"shared memory /dev/shm/{name}" for name in files]
    return found


def marked(mark: str) -> list[int]:
    """Return all living processes that were started with `mark` in their environment, except this one."""
    return [pid for pid in _pids() if pid != os.getpid() and _carries(pid, mark)]


def _descriptors() -> dict[int, str]:
    kept = getattr(resource_tracker._resource_tracker, "_fd", None)
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) != kept:
                found[int(name)] = target
    return found


def _processes(mark: str) -> dict[int, str]:
    found = {}
    for pid in _pids():
        if pid != os.getpid() and (_parent(pid) == os.getpid() or _carries(pid, mark)):
            command = _read(pid, "cmdline")
            if not any(name in command for name in _KEPT_BY_PYTHON):
                found[pid] = (
                    command.replace(b"\0", b" ").decode(errors="replace").strip() or "ended, but not waited for"
                )
    return found


def _is_a_strangers(name: str, mark: str) -> bool:
    """Return whether a file in shared memory names a living process that no test of ours has started."""
    pid = name.split("-")[1] if "-" in name else ""
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    return Path(f"/proc/{pid}").exists() and not _carries(int(pid), mark)


def _another_pytest_runs() -> bool:
    for pid in _pids():
        program, *arguments = _read(pid, "cmdline").split(b"\0")
        if (
            pid != os.getpid()
            and b"python" in program
            and any(Path(os.fsdecode(a)).name == "pytest" for a in arguments)
        ):
            return True
    return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _carries(pid: int, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""  # it has ended, or is not ours


def _await_orphans(pids: set[int], deadline: float) -> None:
    for pid in pids:
        if _parent(pid) == os.getpid():
            continue
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(handle)
