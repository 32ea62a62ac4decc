"""Reports of NCCL to a profiler about its kernels: `kernels.py BOX CORE INTERFACE`. It prints the times of its reports.

Times are in ns of the monotonic clock: for each event, just before and just after it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from taskd.runtime.box.recorder import Recorder
from taskd.runtime.box.shim import core
from taskd.wire.kinds import JobRank
from tests.nccl import COLLECTIVE, Communicator, Plugin

T = TypeVar("T")
MANY = 300
told: list[tuple[int, int]] = []


def tell(what: Callable[..., T], *arguments: object) -> T:
    begun_ns = time.monotonic_ns()
    result = what(*arguments)
    told.append((begun_ns, time.monotonic_ns()))
    return result


recorder = Recorder()
recorder.attach(Path(sys.argv[1]), JobRank(0), 0)
plugin = Plugin(sys.argv[2], int(sys.argv[3]))
assert plugin.name == b"taskd"
one, two = Communicator(plugin), Communicator(plugin)
assert one.wanted == two.wanted == 1 << 6
assert one.start(COLLECTIVE) is None, "it was not asked for"

# two communicators, one of them with two channels, overlap: one period
first = tell(one.start)
again = one.start()
time.sleep(0.02)
other = two.start()
one.stop(first)
time.sleep(0.02)
one.stop(again)
time.sleep(0.02)
tell(two.stop, other)

# destroyed with two channels that never end; their end is reported late, when nothing runs
tell(one.start)
late = one.start()
tell(one.close)
one.stop(late)

# another one that has its place, while many records of others are made
three = Communicator(plugin)
first = tell(three.start)
for _ in range(MANY):
    core().taskd_leave(core().taskd_enter(0, 0, 0, 0, -1))
again = tell(three.start)
three.stop(first)

# a child has no box, and no kernels of its parent's
if (child := os.fork()) == 0:
    three.stop(again)
    three.stop(three.start())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
tell(three.stop, again)
print(json.dumps(told))
