"""One rank: `checkpoint_program.py CASE RANK SIZE PORT DIRECTORY`. Ends with status 0 if all its checks hold."""

import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.checkpoint import filesystem

from taskd.adaptors.groups import GroupWorld
from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.sharding.shards import local
from taskd.adaptors.training.state import TrainState
from taskd.errors import CheckpointError
from taskd.wire.kinds import JobRank
from tests.leave import leave
from tests.training.checkpoint_state import contents, draws, make, train

CASE, RANK, SIZE, PORT, DIRECTORY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
SHELF = DIRECTORY / "shelf"


def save(state: TrainState) -> Path:
    return dump(state._recovery, SHELF, step=state.step, job_id="job", reason="a node was lost")


def trained() -> TrainState:
    """Return a state with equal weights on all ranks. Random numbers and data position differ."""
    state = make(1, RANK, SIZE, wrapped=True)
    torch.manual_seed(RANK)
    train(state, 3)
    return state


def write() -> None:
    """All ranks end with the same path. The reference for the loading programs lies beside it."""
    state = trained()
    state.model.module.norm.running_mean += RANK  # running statistics are each rank's own; rank 0's count
    path = save(state)
    assert path == SHELF / "step-3"
    before = path.stat().st_mtime_ns
    reference = {**contents(state), "epoch": state.sampler.epoch, "draws": draws()}
    (DIRECTORY / f"reference-{RANK}").write_bytes(pickle.dumps(reference))
    assert save(state) == path, "the second time nothing is done"
    assert path.stat().st_mtime_ns == before
    shares = [size for name, size in json.loads((path / "taskd.json").read_text())["files"].items() if "distcp" in name]
    assert len(shares) == SIZE, "each rank writes its share"


def read() -> None:
    """For any world size, model, optimizer and scheduler are restored bit for bit; positions if the size is equal."""
    state = make(5, RANK, SIZE, wrapped=True)
    own = torch.default_generator.get_state()
    assert load_latest(state, SHELF) == state.step == 3
    first, mine = (pickle.loads((DIRECTORY / f"reference-{rank}").read_bytes()) for rank in (0, RANK))
    assert {key: first[key] for key in contents(state)} == contents(state)
    if SIZE == 4:
        assert (state.sampler.epoch, draws()) == (mine["epoch"], mine["draws"])
    else:
        assert state.sampler.epoch == 0
        assert torch.equal(torch.default_generator.get_state(), own)
    train(state, 1)


def refused(match: str, state: TrainState | None = None) -> None:
    state = state or trained()
    before = contents(state)
    with pytest.raises(CheckpointError, match=match):
        save(state)
    assert contents(state) == before


def killed_writing() -> None:
    """A rank dies with its file half-written: the others report this, and nothing is left."""

    def die(*_: Any) -> None:
        assert list(SHELF.glob(".step-3.*.partial/position-*.bin"))
        os.kill(os.getpid(), signal.SIGKILL)

    if RANK == 2:
        setattr(filesystem, "_write_item", die)  # noqa: B010 - in the middle of torch's own writing
    refused("a rank has died")


def killed_first() -> None:
    """Rank 0 dies when all is written, before it renames: the others remove its files."""
    if RANK == 0:

        def die(path: Path) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        files._sync_directory = die
    refused("a rank has died")


def killed_at_the_end() -> None:
    """Rank 0 dies after the renaming: the checkpoint counts, and the others find it."""
    if RANK == 0:
        sync = files._sync_directory

        def die(path: Path) -> None:
            sync(path)
            if path == SHELF:
                os.kill(os.getpid(), signal.SIGKILL)

        files._sync_directory = die
    assert save(trained()) == SHELF / "step-3"


def full() -> None:
    """Writes of one rank fail: all ranks name that rank and the reason."""
    state = trained()
    if RANK == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, resource.RLIM_INFINITY))
    refused(r"rank 1: .*MB are free", state)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert save(state) == SHELF / "step-3", "the same ranks can go on to write where there is room"


def elsewhere() -> None:
    """The ranks do not share a disk."""
    refused(r"rank 1: .*No such file")


def behind() -> None:
    state = trained()
    if RANK == 1:
        state.step = 2
    with pytest.raises(CheckpointError, match=r"rank 1 is clean at step 2, expected clean at step 3"):
        dump(state._recovery, SHELF, step=3, job_id="job", reason="")


def differing() -> None:
    """Ranks that read different directories do not load different steps."""
    state = trained()
    if RANK == 1:
        (path,) = SHELF.glob("step-3")
        assert path.is_dir()
    with pytest.raises(CheckpointError, match="not the same for all ranks: rank"):
        load_latest(state, SHELF if RANK == 1 else DIRECTORY / "empty")


def alone() -> None:
    """A newcomer is set up with the others' rank and size, but without any peer."""
    assert (dist.get_rank(), dist.get_world_size()) == (1, 3)
    state = make(5, 1, 3, wrapped=True)
    assert load_latest(state, SHELF) == 3
    assert load_latest(state, DIRECTORY / "empty") is None


def sharded() -> None:
    """All ranks write parameters that are divided among them (FSDP2). One process can load the whole."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Linear(10, 6)
    plain = nn.Linear(10, 6)
    plain.load_state_dict(net.state_dict())
    reference = torch.optim.AdamW(plain.parameters())
    fully_shard(net)
    state = TrainState(model=net, optimizer=torch.optim.AdamW(net.parameters()))
    for model, optimizer in ((net, state.optimizer), (plain, reference)):
        model(torch.ones(4, 10)).square().sum().backward()
        optimizer.step()
    state.commit()
    save(state)
    fresh = nn.Linear(10, 6)
    fully_shard(fresh)
    again = TrainState(model=fresh, optimizer=torch.optim.AdamW(fresh.parameters()))
    assert load_latest(again, SHELF) == 1
    one: Any
    other: Any
    for one, other in zip(net.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
        moment, loaded = state.optimizer.state[one]["exp_avg"], again.optimizer.state[other]["exp_avg"]
        assert torch.equal(moment.to_local(), loaded.to_local())
    (DIRECTORY / f"plain-{RANK}").write_bytes(pickle.dumps(plain.state_dict()))


def halves() -> TrainState:
    """Return an FSDP2 model with a buffer that differs between ranks."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6))
    fully_shard(net)
    state = TrainState(model=net, optimizer=torch.optim.AdamW(net.parameters()))
    state._recovery.replicas.begin()
    return state


def own_buffers() -> None:
    """With the same division, each rank gets its own buffers back. Otherwise all get the first rank's."""
    state = halves()
    state.model(torch.randn(8, 10, generator=torch.Generator().manual_seed(RANK))).square().sum().backward()
    state.optimizer.step()
    state.commit()
    save(state)
    again = halves()
    assert load_latest(again, SHELF) == 1
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(local(tensor), local(again.model.state_dict()[name])), name
    (DIRECTORY / f"mean-{RANK}").write_bytes(pickle.dumps(state.model[1].running_mean))


def killed_in_parts() -> None:
    """A rank dies while each rank writes its part."""
    state = halves()

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if RANK == 1:
        setattr(filesystem, "_write_item", die)  # noqa: B010 - in the middle of torch's own writing
    with pytest.raises(CheckpointError, match="a rank has died"):
        save(state)


def main() -> None:
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], None]] = {
        f.__name__: f
        for f in (
            write,
            read,
            killed_writing,
            killed_first,
            killed_at_the_end,
            full,
            elsewhere,
            behind,
            differing,
            alone,
            sharded,
            own_buffers,
            killed_in_parts,
        )
    }
    world = GroupWorld()
    rank, size = (1, 3) if CASE == "alone" else (RANK, SIZE)
    if CASE == "alone":
        world.pretend(JobRank(rank), size)
    else:
        world.observe()
    store = PrefixStore(f"{CASE} {SIZE}", TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    cases[CASE]()
    if CASE.startswith("killed") or CASE == "alone":
        leave()  # a peer is gone or never existed: there is no one to wait for
    store.set(f"done/{RANK}", "")
    store.wait([f"done/{rank}" for rank in range(SIZE)])
    leave()


main()
