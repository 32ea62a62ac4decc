"""Claims a black box and waits to be killed, or ends as ordered: `dies.py BOX|- STATUS|wait|large`.

`large`: use as much memory as a worker. The kernel frees it between the futex's notice and the pidfd's.
"""

import mmap
import os
import signal
import sys
from pathlib import Path

from taskd.runtime.box.recorder import open_recorder
from taskd.wire.kinds import JobRank

box, status = sys.argv[1:3]
if box != "-":
    open_recorder().attach(Path(box), JobRank(0), 0)
if status == "large":
    memory = mmap.mmap(-1, 512 << 20)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = 1
print("ready", flush=True)
if status in ("wait", "large"):
    while True:
        signal.pause()
sys.stdin.close()
os._exit(int(status)) if status.startswith("1") else sys.exit(int(status))
