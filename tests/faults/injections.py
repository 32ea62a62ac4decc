"""The faults that a rank inflicts on itself, each by name. The parts of a step are in `tests.faults.program`.

Rules:

1. Each does what it is named for, by ordinary means, without any knowledge of taskd.
2. `Plan.strike` comes last before the fault itself.
"""

import ctypes
import mmap
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.faults.plan import Plan

Injection = Callable[[Plan, int], object]


@cache
def native(plan: Plan, *, keeps_gil: bool = False) -> Any:
    """Return the library in which a rank crashes. The set-up has loaded it like every other one."""
    load = ctypes.PyDLL if keeps_gil else ctypes.CDLL
    return load(str(plan.path("native.so")))


def kill(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    os.kill(os.getpid(), signal.SIGKILL)


def crash(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    native(plan).crash()


def crash_in_thread(plan: Plan, rank: int) -> None:
    thread = threading.Thread(target=crash, args=(plan, rank), name="reader")
    thread.start()
    thread.join()


def truncate_mapped_file(plan: Plan, rank: int) -> None:
    with tempfile.TemporaryFile(dir=plan.folder) as file:
        file.write(b"x" * mmap.PAGESIZE)
        file.flush()
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        plan.strike(rank)
        sum(mapped[:10])


def abort(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    os.abort()


def exit_at_once(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    os._exit(3)


def exit_early(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    sys.exit(0)


def look_up(plan: Plan, rank: int) -> None:
    vocabulary: dict[str, int] = {"known": 1}
    plan.strike(rank)
    vocabulary["unknown"]


def run_out_of_memory(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    torch.empty(1 << 52)


def stop(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    os.kill(os.getpid(), signal.SIGSTOP)


def enter_cgroup(plan: Plan, rank: int) -> None:
    """Enter the cgroup, and freeze at once if it is a frozen one."""
    with open(plan.cgroup, "w") as procs:
        plan.strike(rank)
        procs.write(str(os.getpid()))


def live_in_cgroup(plan: Plan, rank: int) -> None:
    """Enter the cgroup from the start, as a container's process does."""
    if plan.fault == "outgrow" and rank in plan.victims and not plan.has_struck(rank):
        with open(plan.cgroup, "w") as procs:
            procs.write(str(os.getpid()))


def outgrow_cgroup(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    b"x" * (1 << 30)  # touches all of it


def hold_gil(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    native(plan, keeps_gil=True).spin()


def sleep_uninterruptibly(plan: Plan, rank: int) -> None:
    plan.strike(rank)
    native(plan).sleep_uninterruptibly()


def lock_twice(plan: Plan, rank: int) -> None:
    """Let two threads take two locks, each in another order."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        plan.strike(rank)
        with second:
            pass


def wait_in_store(plan: Plan, rank: int) -> None:
    """Wait for a key that no process sets."""
    store: Any = dist.distributed_c10d._get_default_store()
    plan.strike(rank)
    store.wait(["set by nobody"])


def loop(plan: Plan, rank: int) -> None:
    turns = 0
    plan.strike(rank)
    while True:
        turns += 1


def go_outside(plan: Plan, rank: int) -> None:
    """Report that the time for the player's fault has come."""
    plan.note(f"reached-{rank}", str(os.getpid()))


AT_BEGIN: dict[str, Injection] = {
    "": go_outside,
    "kill": kill,
    "crash": crash,
    "crash in a thread": crash_in_thread,
    "truncate": truncate_mapped_file,
    "abort": abort,
    "exit": exit_at_once,
    "exit early": exit_early,
    "exception": look_up,
    "memory": run_out_of_memory,
    "stop": stop,
    "freeze": enter_cgroup,
    "outgrow": outgrow_cgroup,
    "gil": hold_gil,
    "uninterruptible": sleep_uninterruptibly,
    "deadlock": lock_twice,
    "store": wait_in_store,
    "loop": loop,
    "orphan": kill,
}
"""Faults at the start of a step, before its first collective."""


def skip(_values: Tensor) -> None:
    """Do nothing, while the other ranks call `all_reduce`."""


def double(values: Tensor) -> None:
    dist.all_reduce(values.repeat(2))


def gather(values: Tensor) -> None:
    dist.all_gather([torch.empty_like(values) for _ in range(dist.get_world_size())], values)


IN_METRICS: dict[str, Callable[[Tensor], None]] = {"skip": skip, "size": double, "op": gather}
"""Faults in place of the second collective of a step."""


def save(plan: Plan, rank: int, content: dict[str, Any], *, fails: bool) -> None:
    """Write a checkpoint. With `fails`, its disk is full."""
    disk = plan.path("small" if fails else ".")
    if fails:
        with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        plan.strike(rank)
    torch.save(content, disk / f"checkpoint-{rank}.pt")
