"""A rank that shares a group with a process that torchrun did not start: `outsider.py KIND RANK PORT`."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

KIND, RANK, PORT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MEETING = f"tcp://127.0.0.1:{PORT}"


def beside() -> dist.ProcessGroup:
    """Make a group beside the default one, as a sender of new weights to an inference server does."""
    if RANK == 1:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    store, rank, size = next(rendezvous(MEETING, RANK, 2, timeout=timedelta(seconds=60)))
    group, _ = c10d._new_process_group_helper(
        size,
        rank,
        [],
        c10d.Backend("gloo"),
        dist.PrefixStore("weights", store),
        group_name=c10d.GroupName("weights"),
        timeout=timedelta(seconds=60),
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


group = None
if KIND == "beside":
    group = beside()
else:
    dist.init_process_group("gloo", init_method=MEETING, rank=RANK, world_size=2)
total = torch.tensor([RANK + 1.0])
dist.all_reduce(total, group=group)
print(f"rank {RANK}: {total.item():g} of {dist.get_world_size(group)}", flush=True)
own = torch.ones(1)
dist.all_reduce(own)
print(f"rank {RANK} own: {own.item():g}", flush=True)
os._exit(0)
