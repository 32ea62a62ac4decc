"""Checks its node in a cgroup, and prints the result and a core's speed: `under_quota.py ORDER PROCS`.

The imports are done outside: they would take ten times as long inside. A core's speed is measured after the check, by
this process's own time on it. Neither the quota nor a neighbour affects that.
"""

import os
import sys
import time

from taskd.adaptors.nodecheck import local

local.quiet_imports()
import msgspec  # noqa: E402
import torch  # noqa: E402

from taskd.wire.probes import ProbeOrder  # noqa: E402

order = msgspec.json.decode(sys.argv[1], type=ProbeOrder)
with open(sys.argv[2], "w") as procs:
    procs.write(str(os.getpid()))
held = local.check_node([order])
torch.set_num_threads(1)
matrix = torch.ones(384, 384)
matrix @ matrix
begun_s = time.thread_time()
for _ in range(50):
    matrix @ matrix
core_tflops = 50 * 2 * 384**3 / (time.thread_time() - begun_s) / 1e12
os.write(1, msgspec.json.encode((held[0], core_tflops)))
