"""One rank of two: a state goes from rank 0 to rank 1 as in a recovery, and as bare broadcasts, in turn.

Arguments: the folder for the results, MB of the state, number of turns.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import taskd
from taskd.adaptors.training.restore import restore
from taskd.wire.kinds import WorldRank
from taskd.wire.messages import WorldPlan
from taskd.wire.state import Transfer

_PIECE_BYTES = 64 << 20
_MOST_HELD_BYTES = 1 << 30
_STATES = 3
"""Numbers for each parameter: Adam has two beside the parameter itself."""
_PLAN = WorldPlan(
    generation=1,
    world_size=2,
    store_host="127.0.0.1",
    store_port=1,
    target_step=0,
    adopt=(),
    transfers=(Transfer(donor=WorldRank(0), receivers=(WorldRank(1),)),),
    timeout_s=60,
)


def state_of(size_bytes: int, rank: int) -> taskd.TrainState:
    """Return a state of Adam on layers of 16 MiB, or smaller ones, with other numbers on each rank."""
    torch.manual_seed(rank)
    width = 2048 if size_bytes >= 1 << 29 else 512
    layers = max(1, round(size_bytes / (4 * _STATES * width * width)))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return taskd.TrainState(model=model, optimizer=optimizer, seed=0)


def restored_s(state: taskd.TrainState, rank: int) -> float:
    """Make one whole restore; return its seconds."""
    state._recovery.step = 0
    if rank:
        state._recovery.declare_empty()
    else:
        state._recovery.begin()
    dist.barrier()
    begun_s = time.monotonic()
    restore(state._recovery, _PLAN, WorldRank(rank))
    dist.barrier()
    return time.monotonic() - begun_s


def sent_s(size_bytes: int) -> float:
    """Broadcast as many bytes from and to uncached memory; return the seconds, which give the link's own speed."""
    held = torch.ones(min(size_bytes, _MOST_HELD_BYTES), dtype=torch.uint8)
    dist.barrier()
    begun_s = time.monotonic()
    left, at = size_bytes, 0
    while left > 0:
        piece = held[at : at + min(left, _PIECE_BYTES)]
        dist.broadcast(piece, 0)
        left -= len(piece)
        at = (at + len(piece)) % len(held)
    dist.barrier()
    return time.monotonic() - begun_s


def peak_kb(*, reset: bool = False) -> int:
    """Return the peak memory of this process since the last reset, in KiB. With `reset`, reset it first."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)


def main() -> None:
    """Measure restore and link in turn, and write the results."""
    folder, size_bytes, times = Path(sys.argv[1]), int(float(sys.argv[2]) * 1e6), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = state_of(size_bytes, rank)
    restored_s(state, rank)  # connects, and imports modules that are used for the first time
    before_kb = peak_kb(reset=True)
    links, restores, extra_kb = [], [], 0
    for _ in range(times):
        before_kb = peak_kb(reset=True)
        restores.append(restored_s(state, rank))
        extra_kb = max(extra_kb, peak_kb() - before_kb)
        links.append(sent_s(size_bytes))
    found = {
        "link_s": links,
        "restore_s": restores,
        "extra_mb": round(extra_kb * 1024 / 1e6, 1),
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


main()
