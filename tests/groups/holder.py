"""A member of a test world that holds its groups in variables. Status 0 if all of its checks hold."""

import torch
import torch.distributed as dist

from taskd.adaptors.groups.handle import GroupHandle
from taskd.wire.kinds import JobRank
from tests.groups.basics import CASE, RANK, SIZE, WORLD, begin, finish, plan, total
from tests.leave import leave


def alone() -> None:
    """A group that was made by its members alone is made again by them alone."""
    begin()
    groups = {}
    if RANK:
        groups["own"] = dist.new_group([1], use_local_synchronization=True)
    groups["both"] = dist.new_group([0, 1])
    WORLD.rebuild(plan(1), JobRank(RANK))
    assert [total(group) for group in groups.values()] == ([1, 1] if RANK else [1])
    finish()


def kept_default() -> None:
    """Holders of the default group go on to work: a variable, a batch of messages, and its ranks by either object."""
    begin()
    everyone = dist.group.WORLD
    assert isinstance(everyone, GroupHandle)
    inner = everyone.inner()
    WORLD.rebuild(plan(1), JobRank(RANK))
    assert dist.group.WORLD is everyone
    assert everyone.inner() is not inner
    assert total(everyone) == total() == SIZE * (SIZE - 1) / 2
    assert dist.get_process_group_ranks(everyone) == dist.get_process_group_ranks(everyone.inner()) == [0, 1]
    theirs, seen, peer, isend = torch.zeros(1), [], 1 - RANK, dist.isend

    def watched(*args: object, **options: object) -> object:
        seen.append(type(options["group"]))
        return isend(*args, **options)  # type: ignore[arg-type]

    dist.distributed_c10d.isend = watched  # type: ignore[assignment]
    batch = [dist.P2POp(watched, torch.tensor([1.0 + RANK]), peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert seen == [dist.ProcessGroup]  # NCCL puts them together in it
    assert batch[0].group is everyone
    assert theirs.item() == 1.0 + peer
    dist.destroy_process_group(everyone)
    assert not dist.is_initialized()
    finish()


torch.set_num_threads(1)
globals()[CASE]()
leave()
