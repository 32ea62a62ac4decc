"""Common parts of the members of a test world: `PROGRAM CASE RANK SIZE PORT`."""

import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from taskd.adaptors.groups import GroupWorld
from taskd.wire.kinds import JobRank
from taskd.wire.messages import WorldPlan

CASE, RANK, SIZE, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
WORLD = GroupWorld()
KEY = "0123456789abcdef" * 2


def plan(generation: int, members: tuple[int, ...] = (), timeout_s: float = 30) -> WorldPlan:
    return WorldPlan(
        generation=generation,
        world_size=len(members) or SIZE,
        members=tuple(map(JobRank, members)),
        replicas=SIZE,
        store_host="127.0.0.1",
        store_port=PORT,
        store_key=KEY,
        target_step=0,
        adopt=(),
        transfers=(),
        timeout_s=timeout_s,
    )


def begin(**options: object) -> None:
    WORLD.observe()
    dist.init_process_group("gloo", **options)  # type: ignore[arg-type]


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor([float(RANK)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def finish() -> None:
    """Wait until all members are done: the first one to end resets the others' connections."""
    store = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    store.set(f"done/{RANK}", "")
    store.wait([f"done/{rank}" for rank in range(SIZE)])
