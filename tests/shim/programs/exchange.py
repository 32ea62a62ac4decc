"""One rank of two, in a group whose other rank never sends.

    exchange.py ROLE RANK BOX PORT

ROLE is "receive": wait for a tensor, and print how the wait ended; or "idle": report when gloo has no socket left.
"""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import Recorder

recorder = Recorder()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from taskd.wire.kinds import JobRank  # noqa: E402

role, rank, box, port = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
recorder.attach(box, JobRank(rank), 0)
store = dist.TCPStore("127.0.0.1", port, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
assert recorder.census().sockets > 0
recorder.step(1)
if role == "receive":
    try:
        dist.recv(torch.empty(4), src=1 - rank)
        print("received what nobody sent")
    except RuntimeError:
        print("raised")
else:
    deadline = time.monotonic() + 15
    while recorder.census().sockets and time.monotonic() < deadline:
        time.sleep(0.005)
    print(f"sockets: {recorder.census().sockets}")
