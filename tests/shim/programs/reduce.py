"""One rank that reduces 12 MB tensors for ever, checks every element, and after each break forms a new group.

    reduce.py HOW RANK WORLD BOX PORT

HOW the core comes: "gate" (preloaded), "core" (loaded before torch), "fork" (a template has loaded core and torch).
After break number n, the surviving ranks are those that the store lists under "survivors/n". They go on after the last
step that all of them have done. "stop" ends the rank.
"""

import os
import sys
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder

recorder = Recorder()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from taskd.wire.kinds import JobRank  # noqa: E402

ELEMENTS = 3_000_000
STEP = "step/{}/{}"


def fill(step: int, rank: int) -> float:
    return float((step % 7 + 1) * (rank + 1))


def reduce_until_broken(step: int, rank: int, world: list[int], seen: list[int]) -> int:
    """Reduce step after step. Return the last complete step."""
    try:
        while True:
            tensor = torch.full((ELEMENTS,), fill(step + 1, rank))
            dist.all_reduce(tensor)
            step += 1
            expected = sum(fill(step, one) for one in world)
            if not bool((tensor == expected).all()):
                print(f"rank {rank}, step {step}: wrong values", flush=True)
                os._exit(9)
            seen[0] += 1
            recorder.step(seen[0])
    except RuntimeError as error:
        print(f"rank {rank} came out: {str(error).splitlines()[0]}", flush=True)
        return step


def main(rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    world, step, group, seen = list(range(ranks)), 0, 0, [0]
    while True:
        recorder.phase(BoxPhase.REBUILDING)
        prefixed = dist.PrefixStore(f"group{group}", store)
        dist.init_process_group("gloo", store=prefixed, rank=world.index(rank), world_size=len(world))
        recorder.phase(BoxPhase.TRAINING)
        step = reduce_until_broken(step, rank, world, seen)
        recorder.phase(BoxPhase.PAUSED)
        dist.destroy_process_group()
        census = recorder.census()
        assert census.sockets_hooked, census
        assert census.waits_hooked, census
        assert (census.sockets, census.waiters) == (0, 0), census
        group += 1
        survivors = store.get(f"survivors/{group}").decode()
        if survivors == "stop":
            return
        world = [int(word) for word in survivors.split()]
        store.set(STEP.format(group, rank), str(step))
        step = min(int(store.get(STEP.format(group, one))) for one in world)
        recorder.mend()


how, own_rank, all_ranks, box, store_port = (
    sys.argv[1],
    int(sys.argv[2]),
    int(sys.argv[3]),
    Path(sys.argv[4]),
    sys.argv[5],
)
if how == "fork":
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if how != "gate":
    recorder.attach(box, JobRank(own_rank), 0)
main(own_rank, all_ranks, int(store_port))
