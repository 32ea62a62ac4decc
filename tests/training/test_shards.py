"""A rank's statement of the state that it holds: a name from its shards, its digests, and FSDP2's flags."""

import multiprocessing
import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from taskd.adaptors.seams.parts import Part
from taskd.adaptors.seams.seam import Fit, Seam
from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.inflight import fsdp2
from taskd.adaptors.training.inflight.in_flight import InFlight
from taskd.adaptors.training.limits import refusals
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.replicas import Replicas
from taskd.adaptors.training.sharding.shards import Specs, digest_of, is_part, local, name_of
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.state import StateHeld

AtRank = Callable[[int], None]


@pytest.fixture
def at_rank() -> Iterator[AtRank]:
    """Yield a function that makes this process the given rank of a world of four without living peers."""

    def become(rank: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)

    yield become
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def parts_of(model: nn.Module) -> Parts:
    return TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))._recovery.parts


def hsdp() -> nn.Sequential:
    model, mesh = network(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def name_at(rank: int) -> str:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    return name_of(parts_of(hsdp()))


def test_ranks_that_differ_in_replicated_dimensions_alone_have_one_name() -> None:
    names = []
    for rank in range(4):  # each in a child process: torch remembers the coordinates of equal meshes
        with multiprocessing.get_context("fork").Pool(1) as child:
            names.append(child.apply(name_at, (rank,)))
    assert names[0] == names[2] != names[1] == names[3]
    assert names[0].startswith("shard=0 ")
    assert names[1].startswith("shard=1 ")


def states(rank: int, stated: str, world: str, port: int) -> str:
    """Return the replica set that a rank states, or the error that refuses it."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("fake", store=store, rank=rank, world_size=4)
    replicas = Replicas(parts_of(hsdp()), stated)
    try:
        replicas.begin(world=world)
    except ConfigError as error:
        replicas.begin(empty=True, world=world)  # a new process has the part of its predecessor
        return str(error)
    return replicas.said().replicas


def test_ranks_that_state_one_set_have_one_part() -> None:
    """Each queries only the store and does not wait for the others."""
    server, said = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), []
    for rank, stated, world in ((0, "a", "0/1"), (2, "a", "0/1"), (1, "b", "0/1"), (3, "a", "0/1"), (3, "a", "1/1")):
        with multiprocessing.get_context("fork").Pool(
            1
        ) as child:  # as above, and before this process has a mesh of its own
            said.append(child.apply(states, (rank, stated, world, server.port)))
    assert [said[number] for number in (0, 1, 2, 4)] == ["a", "a", "b", "a"]
    assert re.search(r"replica_set='a'.*'shard=1 \w+'.*another rank.*'shard=0 \w+'", said[3])


def test_a_plain_model_has_no_name_and_another_digest_for_each_bit(at_rank: AtRank) -> None:
    at_rank(0)
    model = network()
    parts = parts_of(model)
    assert name_of(parts) == ""
    known = digest_of(parts)
    assert digest_of(parts) == known
    with torch.no_grad():
        words = next(model.parameters()).view(torch.int32)
        words[0, 0] ^= 1
        flipped = digest_of(parts)
        words[0, 0] ^= 1
        words[0, :2] = words[0, :2].flip(0)
        swapped = digest_of(parts)
    assert len({known, flipped, swapped}) == 3


def test_what_is_gathered_is_named_and_digested_as_if_it_were_not(at_rank: AtRank) -> None:
    at_rank(1)
    model = hsdp()
    parts = parts_of(model)
    name, digest = name_of(parts), digest_of(parts)
    assert isinstance(model, FSDPModule)
    model.unshard()
    assert not any(is_part(parameter) for parameter in model[1].parameters())  # the root's parameters
    assert (name_of(parts), digest_of(parts)) == (name, digest)


def test_a_digest_is_taken_at_the_beginning_and_at_the_first_commit_alone(at_rank: AtRank) -> None:
    at_rank(0)
    replicas = Replicas(parts_of(network()))
    replicas.begin()
    for _ in range(3):
        replicas.committed()
    assert len(replicas.weights) == 2
    replicas.begin(empty=True)
    assert replicas.said() == StateHeld()
    replicas.committed()
    assert not replicas.weights
    replicas.take(("a", "b"))
    assert replicas.said() == StateHeld(weights=("a", "b"))


def test_a_part_is_put_together_with_the_own_mesh(at_rank: AtRank) -> None:
    at_rank(2)
    model = hsdp()
    specs = Specs(parts_of(model))
    weight = next(iter(model[0].parameters()))
    moment = torch.zeros_like(weight)
    made = specs.make(specs.index(moment), local(moment).clone())
    assert made._spec == weight._spec  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the peer's part has shape"):
        specs.make(specs.index(moment), torch.zeros(3))
    with pytest.raises(ValueError, match="is sharded as its number 9"):
        specs.make(9, torch.zeros(3))
    mesh = init_device_mesh("cpu", (2, 2))
    with pytest.raises(TypeError, match="sharded as no parameter of the state is"):
        specs.index(distribute_tensor(torch.zeros(6, 6), mesh, [Replicate(), Shard(1)]))


def test_flags_are_put_back(at_rank: AtRank) -> None:
    at_rank(0)
    model = hsdp()
    assert isinstance(model, FSDPModule)
    modules = fsdp2.sharded_modules([model])
    known = fsdp2.flags(modules)
    model.set_requires_gradient_sync(False)
    model.set_is_last_backward(False)
    model.set_reshard_after_backward(False)
    assert fsdp2.flags(modules) != known
    fsdp2.put_flags(modules, known)
    assert fsdp2.flags(modules) == known


@pytest.mark.parametrize("length", [0, 3, 1 << 17, (1 << 20) + 5])
def test_any_flipped_bit_changes_the_digest(length: int) -> None:
    """The bits are in small and large tensors, at the ends and in the middle, for any start of their memory."""
    memory = torch.randint(256, (length + 1,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for first in (0, 1):
        tensor = memory[first : first + length]
        known = digest([tensor])
        assert digest([tensor.clone()]) == known
        for place in {0, length // 2, length - 1} if length else set():
            tensor[place] ^= 1 << place % 8
            assert digest([tensor]) != known
            tensor[place] ^= 1 << place % 8


def test_an_fsdp2_that_does_not_fit_is_left_alone_and_refused(at_rank: AtRank, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Seam("torch.distributed.fsdp", "FSDPModule", Fit.HAS, ("no_such_method",))
    for module in (fsdp2, refusals):
        monkeypatch.setattr(module, "IN_SHARDED", Part("FSDP2", (missing,), "It is left alone"))
    at_rank(0)
    parts = parts_of(hsdp())
    assert InFlight(parts).flags == []
    assert any("found no no_such_method" in one.text and one.no_rebuild for one in refusals.matters(parts))
