"""A warm torchrun: reads one job a line, and runs the torchruns of each in forks of this process.

Rules:

1. Torch is imported once, before the first fork; that is most of what starting torchrun costs. There is one thread.
   Objects of that time are frozen: the forks neither collect nor copy them.
2. A fork does what the command line would: arguments, environment, directory, three streams, a session of its own.
"""

import gc
import importlib
import json
import os
import runpy
import sys
import time
from typing import Any

if "TASKD_PROCESS_ENABLE" in os.environ:
    import taskd.python.adaptor.patch
    import taskd.runtime.agent.agent  # noqa: F401

torchrun = importlib.import_module("torch.distributed.run")
importlib.import_module("torch.distributed.launch")


def become(job: dict[str, Any], node: int) -> None:
    """Make this fork the torchrun of one node."""
    os.setsid()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(f"{job['folder']}/{name}-{node}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["folder"])
    for name, value in job["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if node:
        after = job["after"]
        if after:
            with open(after):
                pass
    words = job["nodes"][node]
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, os.environ[name] = words.pop(0).partition("=")
    sys.argv = ["torchrun", *words]
    if "BREAKS" in os.environ or "CENSUS" in os.environ:
        importlib.import_module("tests.torchrun.programs.breaks").apply()


def manage(job: dict[str, Any]) -> None:
    """Be the manager of a job until it ends."""
    from taskd.api import init_taskd_manager, start_taskd_manager

    os.environ["TASKD_MANAGER_PORT"] = job["manager"]
    assert init_taskd_manager({"job_id": "default", "node_nums": len(job["nodes"]), "proc_per_node": 1})
    assert start_taskd_manager()


def main() -> None:
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        started_s, forks = time.monotonic(), []
        manager = os.fork() if job["manager"] else None
        if manager == 0:
            manage(job)
            return
        for node in range(len(job["nodes"])):
            forks.append(os.fork())
            if forks[-1] == 0:
                become(job, node)
                if job["program"].endswith(".py"):
                    runpy.run_path(job["program"], run_name="__main__")
                else:
                    importlib.import_module(job["program"]).main()
                return
        statuses = [os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]
        if manager is not None:
            os.waitpid(manager, 0)
        print(json.dumps({"statuses": statuses, "seconds": time.monotonic() - started_s}), flush=True)


if __name__ == "__main__":  # a rank that is spawned imports this file
    main()
