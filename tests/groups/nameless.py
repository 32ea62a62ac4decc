"""A rank whose gloo names no threads, as in torch 2.6 to 2.9. Ends with status 0 if taskd gives them their names."""

import os
import threading

import torch
import torch.distributed as dist

from taskd.adaptors.groups.thread_names import LOOP, WORKER, ThreadNames, read_task
from tests.leave import leave

OF_GLOO = 3
"""Threads of a group: its transport and two workers."""


def names() -> dict[str, str]:
    return {task: read_task(task, "comm") for task in os.listdir("/proc/self/task")}


def named() -> set[str]:
    return {task for task, name in names().items() if name in {LOOP, WORKER}}


def take_names(tasks: set[str]) -> None:
    own = read_task(str(threading.get_native_id()), "comm")
    for task in tasks:
        with open(f"/proc/self/task/{task}/comm", "w") as file:
            file.write(own)


def main() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name="one of Python").start()
    given = ThreadNames()
    with given.of_new_threads():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        threading.Thread(target=threading.Event().wait, daemon=True, name="came meanwhile").start()
        new = named()
        while len(new) < OF_GLOO:  # each names itself when it first runs
            new = named()
        of_torch = names()
        take_names(new)
    given.complete()
    assert names() == of_torch, f"{of_torch} have become {names()}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
