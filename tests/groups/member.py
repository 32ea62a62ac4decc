"""One member of a test world: `member.py CASE RANK SIZE PORT`. It ends with status 0 if all of its checks hold."""

import mmap
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed import new_group  # bound before the world is watched, as in many scripts
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.members import Members, refuse_meshes
from taskd.adaptors.groups.unstick import break_without_shim
from taskd.errors import RebuildError, RefusedError
from taskd.wire.kinds import JobRank
from tests.groups.basics import CASE, KEY, PORT, RANK, SIZE, WORLD, begin, finish, plan, total
from tests.leave import leave


def resources() -> tuple[int, int, int, int]:
    with open("/proc/self/statm") as statm:
        resident_bytes = int(statm.read().split()[1]) * 4096
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident_bytes, stored_keys()


def stored_keys() -> int:
    store = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    count: int = store.num_keys()
    return count


def rounds() -> None:
    """200 rebuilds: handles go on to work, names stay, nothing grows, older keys are deleted."""
    begin(timeout=timedelta(seconds=33))
    everyone, pair = new_group(), new_group([0, 1], group_desc="pair", timeout=timedelta(seconds=7))
    tagged = dist.distributed_c10d._find_or_create_pg_by_ranks_and_tag("mine", list(range(SIZE)), SIZE)
    before = {}
    for generation in range(1, 201):
        WORLD.rebuild(plan(generation), JobRank(RANK))
        expected = SIZE * (SIZE - 1) / 2
        assert total() == total(everyone) == total(tagged) == expected
        assert dist.get_world_size(everyone) == SIZE
        assert dist.get_rank() == RANK
        if RANK < 2:
            assert total(pair) == 1
            assert dist.get_process_group_ranks(pair) == [0, 1]
            assert (pair.group_name, pair.group_desc) == ("2", "pair")
            assert pair._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=7)
        else:
            assert pair == dist.GroupMember.NON_GROUP_MEMBER
        found = dist.distributed_c10d._find_or_create_pg_by_ranks_and_tag("mine", list(range(SIZE)), SIZE)
        assert dist.get_process_group_ranks(found) == list(range(SIZE))
        assert dist.group.WORLD is not None
        assert dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=33)
        destroyer = WORLD.destroy_retired()
        assert destroyer is not None
        destroyer.join()
        if generation in (20, 200):
            dist.barrier()
            before[generation] = resources()
            dist.barrier()
    (fds, threads, memory, keys), (fds_end, threads_end, memory_end, keys_end) = before[20], before[200]
    assert fds_end <= fds, f"{fds} descriptors have become {fds_end}"
    assert threads_end <= threads + 1, f"{threads} threads have become {threads_end}"  # a dying thread is counted
    assert memory_end - memory < 8 << 20, f"{memory} bytes have become {memory_end}"
    assert keys_end == keys, f"{keys} keys have become {keys_end}"
    store = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    if hasattr(store, "list_keys"):  # older torch counts only the keys
        old = [key for key in store.list_keys() if "taskd/" in key and f"taskd/{KEY}/200/" not in key]
        assert not old, old
    dist.barrier()
    dist.destroy_process_group()


def shrinks() -> None:
    """In worlds of fewer members, in another order, and whole again, ranks, tables and DDP's averages are right."""
    begin()
    clock = TCPStore("127.0.0.1", PORT, is_master=False)
    everyone, three, last, others = new_group(), new_group([3, 1, 0]), new_group([2, 3]), new_group([2])
    own_group = three if RANK != 2 else others
    models = [DistributedDataParallel(nn.Linear(1, 1), process_group=group) for group in (None, own_group)]
    for generation, members in enumerate([(0, 1, 3), (3, 1, 0), (3, 0), (1,), (0, 1, 2, 3), (1, 3), (0, 1, 2, 3)], 1):
        if RANK not in members:  # no member is ahead of the world: a later one would sweep its keys away
            clock.wait([f"over-{generation}"], timedelta(seconds=60))
            continue
        WORLD.rebuild(plan(generation, members), JobRank(RANK))
        for model in models:
            model._update_process_group(WORLD.current(model.process_group))
        assert (dist.get_rank(), dist.get_world_size()) == (members.index(RANK), len(members))
        assert total() == total(everyone) == sum(members)
        for group, slots in ((everyone, (0, 1, 2, 3)), (three, (0, 1, 3)), (last, (2, 3))):  # torch sorts them
            present = [slot for slot in slots if slot in members]
            if RANK not in slots:
                assert group == dist.GroupMember.NON_GROUP_MEMBER
                continue
            assert total(group) == sum(present)
            assert dist.get_process_group_ranks(group) == [members.index(slot) for slot in present]
            assert (dist.get_world_size(group), dist.get_rank(group)) == (len(present), present.index(RANK))
        assert RANK == 2 or others == dist.GroupMember.NON_GROUP_MEMBER
        assert average(models[0]) == pytest.approx(sum(members) / len(members))
        averaged = set(members) & {0, 1, 3} if RANK != 2 else {2}
        assert average(models[1]) == pytest.approx(sum(averaged) / len(averaged))
        destroyer = WORLD.destroy_retired()
        assert destroyer is not None
        destroyer.join()
        dist.barrier()
        if clock.add(f"present-{generation}", 1) == len(members):
            clock.set(f"over-{generation}", "")
    finish()


def average(model: DistributedDataParallel) -> float:
    """Return the gradient of a weight whose own gradient is this rank's number."""
    model.zero_grad()
    model(torch.tensor([[float(RANK)]])).sum().backward()
    gradient = model.module.weight.grad
    return float(gradient.item())


def new_groups_in_a_smaller_world() -> None:
    """The ranks of the job keep a group that was made among fewer members."""
    begin()
    if RANK == 0:
        finish()
        return
    WORLD.rebuild(plan(1, (2, 1)), JobRank(RANK))
    pair = new_group([0, 1])
    assert [call.ranks for call in WORLD._calls] == [(), (2, 1)]
    WORLD.rebuild(plan(2, (1, 2)), JobRank(RANK))
    assert total(pair) == 3
    assert dist.get_process_group_ranks(pair) == [1, 0]
    dist.barrier()
    finish()


def meshes() -> None:
    """A device mesh prevents a world in which its ranks have other numbers."""
    from torch.distributed.device_mesh import init_device_mesh

    begin()
    mesh = init_device_mesh("cpu", (SIZE,))
    WORLD.rebuild(plan(1), JobRank(RANK))
    with pytest.raises(RebuildError, match=r"a device mesh has the ranks \[0, 1, 2\], .* ranks \(0, 2\)"):
        refuse_meshes(Members((JobRank(0), JobRank(2))), None, JobRank(1)) if RANK == 1 else WORLD.rebuild(
            plan(2, (0, 2)), JobRank(RANK)
        )
    assert total(mesh.get_group()) == 3  # nothing was left
    dist.barrier()


def outside() -> None:
    """A plan without this rank, and a plan that contradicts itself, raise errors."""
    with pytest.raises(RebuildError, match=r"rank 2 of the job is not in the new world of \(0, 1\)"):
        WORLD.rebuild(plan(1, (0, 1)), JobRank(2))
    with pytest.raises(RebuildError, match="expected 2 different ranks"):
        WORLD.rebuild(plan(1, (1, 1)), JobRank(1))


def new_groups_after() -> None:
    """Groups made after a rebuild get new names. Destroyed ones are not made again. Collectives find them by name."""
    from torch.distributed import _functional_collectives as functional

    begin()
    first, second = new_group(), new_group()
    dist.destroy_process_group(first)
    WORLD.rebuild(plan(1), JobRank(RANK))
    third = new_group()
    WORLD.rebuild(plan(2), JobRank(RANK))
    assert [second.group_name, third.group_name] == ["2", "3"]
    assert total(second) == total(third) == SIZE * (SIZE - 1) / 2
    gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)  # the newer name, the older one
    gathered = gather(torch.tensor([float(RANK)]), 0, second)
    assert gathered.tolist() == [float(rank) for rank in range(SIZE)]
    dist.barrier(group=third)
    told = hasattr(dist.ProcessGroup, "shutdown")  # torch 2.6 has no entry of such a group, and fails later
    with pytest.raises(ValueError if told else TypeError, match="not initialized" if told else "value was None"):
        total(first)
    dist.barrier()
    dist.destroy_process_group()


def different() -> None:
    """Ranks that have made different groups detect that, and none hangs."""
    begin()
    dist.distributed_c10d._new_group_with_tag([0, 1], pg_tag=f"of rank {RANK}")
    with pytest.raises(RefusedError, match="made other process groups"):
        WORLD.rebuild(plan(1), JobRank(RANK))
    assert not dist.is_initialized()
    finish()


def frees(broken_by: Callable[[], object]) -> None:
    """Ranks stuck behind a stopped peer are freed at once by another thread of their own.

    The tensor is small: sends in gloo's queue cannot be broken without the shim.
    """
    begin(timeout=timedelta(seconds=60))
    total()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began_at = time.monotonic()

    def helper() -> None:
        if await_call(FUTEX):
            broken_by()

    thread = threading.Thread(target=helper)
    thread.start()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1000))
    LEFT.set()
    thread.join()
    assert time.monotonic() - began_at < 20


LEFT = threading.Event()
FUTEX = {"x86_64": {202}, "aarch64": {98}}[platform.machine()]
SOCKET_WAIT = {"x86_64": {7, 45, 47, 271}, "aarch64": {73, 207, 212}}[platform.machine()]


def await_call(numbers: set[int]) -> bool:
    """Return True when the main thread waits in one of these system calls. Only they show that it is in C++ by now.

    Return False if it left its call first, because a peer broke the connection sooner.
    """
    while not LEFT.wait(0.001):
        with open(f"/proc/self/task/{os.getpid()}/syscall") as syscall:
            first = syscall.read().split()[0]
        if first.isdigit() and int(first) in numbers and in_torch():
            return True
    return False


def in_torch() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return "torch" in frame.f_code.co_filename


def interrupted() -> None:
    """Another thread breaks off a rebuild that waits for an absent peer, and the next rebuild works."""
    begin()
    result: list[object] = []

    def helper() -> None:
        await_call(SOCKET_WAIT)
        WORLD.outdate(5)
        result.append(WORLD.interrupt())

    if RANK == 0:
        thread = threading.Thread(target=helper)
        thread.start()
        started = time.monotonic()
        with pytest.raises(RebuildError, match="generation 3 was not formed"):
            WORLD.rebuild(plan(3, timeout_s=60), JobRank(RANK))
        thread.join()
        assert time.monotonic() - started < 10
        assert result[0]
        with pytest.raises(RebuildError, match="outdated"):
            WORLD.rebuild(plan(4, timeout_s=60), JobRank(RANK))
    WORLD.rebuild(plan(5), JobRank(RANK))
    assert total() == SIZE * (SIZE - 1) / 2
    dist.barrier()
    dist.destroy_process_group()


def never_formed() -> None:
    """A peer stops before it comes. The rest gives up within the plan's timeout, whatever the script's is."""
    begin(timeout=timedelta(seconds=60))
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(RebuildError, match="within 2 s"):
        WORLD.rebuild(plan(1, timeout_s=2), JobRank(RANK))
    assert 1 < time.monotonic() - started < 20


def own_timeout() -> None:
    """Forming has the plan's timeout, and later collectives the script's own."""
    begin(timeout=timedelta(seconds=2))
    WORLD.rebuild(plan(1, timeout_s=60), JobRank(RANK))
    total()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1 << 20))
    assert 1 < time.monotonic() - started < 20


def settles() -> None:
    """An unfinished collective keeps the groups busy, and so does one whose thread waits for the interpreter.

    Rank 0 announces through shared memory that it holds the interpreter: any call would release it.
    """
    path = Path(tempfile.gettempdir(), f"taskd-settles-{PORT}")
    if RANK == 0:
        path.write_bytes(bytes(2))
    begin()
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 2)
    assert WORLD.settle(20)
    if RANK == 1:
        while not shared[0]:
            time.sleep(0.01)
        total()
        shared[1] = 1
        assert WORLD.settle(20)
        return
    tensor = torch.ones(1)
    freed = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    assert not WORLD.settle(0.1)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # this thread keeps the interpreter until it releases it itself
    shared[0] = 1
    end_s = time.monotonic() + 2
    while not shared[1] and time.monotonic() < end_s:
        pass  # the collective is done meanwhile, unless its thread waits for the interpreter before that
    assert freed() is not None
    sys.setswitchinterval(usual_s)
    assert WORLD.settle(20)
    assert freed() is None
    path.unlink()


def main() -> None:
    torch.set_num_threads(1)
    if CASE == "unstick":
        frees(break_without_shim)
    elif CASE == "abandon":
        frees(WORLD.abandon)
    else:
        globals()[CASE]()


main()
leave()  # a group that was broken waits for no peer
