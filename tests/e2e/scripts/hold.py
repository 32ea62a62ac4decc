"""A rank without torch and without the SDK. It records its surroundings, waits at a point, and ends."""

import json
import os
import resource
import sys
import threading
from pathlib import Path

from tests.e2e.scripts.points import PLAN, note, rank, reach

if PLAN.get("commits"):
    from taskd.runtime.worker.worker import current
    from taskd.wire.messages import Condition

loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
seen = {
    "env": {name: value for name, value in os.environ.items() if name != "LEAK_CENSUS"},
    "argv": sys.argv[:1],
    "path": sys.path,
    "threads": sorted(thread.name for thread in threading.enumerate()),
    "tasks": len(os.listdir("/proc/self/task")),
    "taskd": sorted(name for name in sys.modules if name.partition(".")[0] == "taskd"),
    "objects": sorted(name for name in loaded if "libtaskd" in name),
    "main": __name__,
    "pid": os.getpid(),
    "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
}
start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
note(f"seen-{rank()}-{start}", json.dumps(seen))
if PLAN.get("commits"):  # as a resilient training does; the agent makes its warm processes then
    link = current()
    assert link is not None
    link.enter(0, Condition.CLEAN)
    link.committed(1)
reach("run")
sys.stdout.write(f"rank {rank()} ends\n")  # in one piece: print writes twice, and the ranks share the stream
sys.stdout.flush()
sys.exit(PLAN.get("status", 0))
