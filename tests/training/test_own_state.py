"""Parts whose state a trainer's adapter provides: copied, put back, taken out of a step, and refused."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from taskd.adaptors.training.checkpoints.content import Draft, collect
from taskd.adaptors.training.inflight.in_flight import InFlight
from taskd.adaptors.training.parts.followers import Followers
from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.parts.plain import Plain
from taskd.adaptors.training.parts.taken_in import TakenIn
from taskd.adaptors.training.sharding.own_state import OwnState, is_divided, tell
from taskd.adaptors.training.sharding.partitions import load, partitions, state_of, whole
from taskd.adaptors.training.sharding.shards import name_of, rows_of
from taskd.errors import CheckpointError


class Told(OwnState):
    def __init__(self, weight: torch.Tensor, rank: int = 0, of: int = 1) -> None:
        self.weight, self.rank, self.of = weight, rank, of
        self.called: list[str] = []

    def state(self) -> Any:
        return {"weight": self.weight.detach()}

    def load(self, state: Any) -> None:
        self.weight.data.copy_(state["weight"])

    def mark(self) -> None:
        self.called.append("mark")

    def drop_step(self) -> None:
        self.called.append("drop")

    def complete(self) -> None:
        self.called.append("complete")


def parts_of(rank: int, of: int) -> tuple[Parts, Told]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    told = Told(model.weight, rank, of)
    tell(optimizer, told)
    return Parts(sort({"model": model, "optimizer": optimizer})), told


def test_an_epochs_end_copies_no_model_that_an_adapter_puts_back() -> None:
    """ZeRO-3 gathers its parameters in a backward pass, but not at the end of a loop over a loader."""

    class Gathered(torch.nn.Linear):
        def state_dict(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("an adapter tells its state")

    model, other = Gathered(2, 2), torch.nn.Linear(2, 2)
    told = Told(model.weight)
    tell(model, told)
    followers = Followers({"model": model, "optimizer": torch.optim.SGD(other.parameters(), lr=1.0)}, TakenIn())
    followers.save()
    followers.hold()
    assert followers.rollback() == ""


def test_the_adapter_says_what_the_state_is() -> None:
    parts, told = parts_of(0, 1)
    optimizer = parts.replicated["optimizer"]
    assert list(state_of(optimizer)) == ["weight"]
    assert state_of(optimizer)["weight"].data_ptr() == told.weight.data_ptr()
    load(optimizer, {"weight": torch.ones(2, 2)})
    assert told.weight.tolist() == [[1, 1], [1, 1]]
    assert not is_divided(optimizer)
    assert not partitions(parts.optimizers)
    assert name_of(parts) == ""


def test_a_divided_part_has_a_name_for_each_rank() -> None:
    (first, _), (second, _), (again, _) = known = [parts_of(rank, 2) for rank in (0, 1, 0)]
    assert partitions(first.optimizers) == first.optimizers
    assert list(whole(first.optimizers)) == first.optimizers
    assert name_of(first) == name_of(again) != name_of(second)
    assert name_of(first).startswith("zero=0 ")
    del known, _
    assert not partitions(again.optimizers)  # the adapter's object is no longer referenced


def test_it_is_told_of_steps_and_recoveries() -> None:
    parts, told = parts_of(0, 1)
    in_flight = InFlight(parts)
    assert in_flight.any
    in_flight.mark()
    in_flight.drop_step(0)
    in_flight.complete()
    assert told.called == ["mark", "mark", "drop", "complete"]


def test_no_checkpoint_of_taskds_has_it() -> None:
    parts, _told = parts_of(0, 2)
    with pytest.raises(CheckpointError, match=r"found the part 'optimizer', a SGD .*, expected .* engine"):
        collect(parts, is_first=True, lists=True)
    with pytest.raises(CheckpointError, match="found the part 'optimizer'"):
        Draft(parts, {})


def test_of_anything_else_nothing_is_told() -> None:
    assert not is_divided({"a": 1})
    assert state_of(torch.nn.Linear(1, 1)).keys() == {"weight", "bias"}


@pytest.mark.parametrize("needs_all", [True, False])
def test_whether_fewer_ranks_will_do(needs_all: bool) -> None:
    parts, told = parts_of(0, 1)
    told.needs_all = needs_all
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = rows_of(parts, 1)
    finally:
        dist.destroy_process_group()
    assert found == ("a SGD counts on all ranks that it was made with" if needs_all else None)


def test_attributes_that_the_adapter_puts_back() -> None:
    model = torch.nn.Linear(2, 2)
    told = Told(model.weight)
    told.attributes = frozenset({"of_the_library"})
    tell(model, told)
    vars(model).update(of_the_library=1, of_the_script=1)
    plain = Plain({"model": model})
    plain.begin()
    vars(model).update(of_the_library=2, of_the_script=2)
    assert [name for _, name, *_ in plain.changed()] == ["of_the_script"]
