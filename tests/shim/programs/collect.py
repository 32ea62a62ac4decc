"""One rank of two that calls every operation of gloo, in a group of all and in one more.

collect.py RANK BOX PORT NAMED
"""

import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder

recorder = Recorder()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from taskd.wire.kinds import JobRank  # noqa: E402

rank, box, port, named = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "named"
recorder.attach(box, JobRank(rank), 0)
with recorder.naming("generation 7") if named else nullcontext():
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
if rank == 0 and named:  # ranks may differ in the groups that they have formed before
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
with recorder.naming("second") if named else nullcontext():
    second = dist.new_group([0, 1])

data = torch.ones(1000)
parts = [torch.empty(1000) for _ in range(2)]
dist.all_reduce(data)
dist.all_gather(parts, data)
dist.broadcast(data, src=1)
dist.reduce(data, dst=0)
dist.gather(data, parts if rank == 0 else None, dst=0)
dist.scatter(data, parts if rank == 0 else None, src=0)
dist.all_to_all_single(torch.empty(1000), data)
dist.barrier()
dist.all_reduce(data.double(), group=second)
if rank == 0:
    dist.send(data, dst=1)
else:
    dist.recv(data, src=0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 10))
model(torch.ones(4, 30)).sum().backward()
assert recorder.census().collectives_hooked
recorder.phase(BoxPhase.FINISHED)
if rank == 0:
    dist.all_reduce(torch.ones(3))  # the other rank never comes
else:
    sys.stdout.flush()
    import signal

    signal.pause()
