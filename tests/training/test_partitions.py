"""ZeRO-1: a rank names and sends its part of an optimizer's state without any collective."""

import copy
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import taskd
from taskd.adaptors.training import grace
from taskd.adaptors.training.limits.refusals import matters
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.partitions import is_partitioned, load, state_of, whole
from taskd.adaptors.training.sharding.shards import name_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch itself uses its deprecated parts
    from torch.distributed.optim import ZeroRedundancyOptimizer


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(steps: int) -> tuple[torch.nn.Linear, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    for _ in range(steps):
        zero.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        zero.step()
    return model, zero


@pytest.mark.usefixtures("group")
def test_the_own_part_is_given_without_consolidation() -> None:
    model, zero = trained(3)
    zero.param_groups[0]["lr"] = 0.5  # set by a scheduler, and not yet passed to the inner optimizer
    with pytest.raises(RuntimeError):
        zero.state_dict()
    other_model, other = trained(0)
    other_model.load_state_dict(model.state_dict())
    load(other, copy.deepcopy(state_of(zero)))
    assert other.param_groups[0]["lr"] == 0.5
    for one in ((model, zero), (other_model, other)):
        one[1].zero_grad()
        one[0](torch.ones(4, 3)).sum().backward()
        one[1].step()
    assert torch.equal(model.weight, other_model.weight)
    assert [type(one).__name__ for one in whole([zero])] == ["ZeroRedundancyOptimizer", "AdamW"]


@pytest.mark.usefixtures("group")
def test_a_state_with_one_is_named_by_its_part() -> None:
    model, zero = trained(1)
    parts = taskd.TrainState(model=model, optimizer=zero)._recovery.parts
    assert name_of(parts) == "", "one rank alone has all of it"
    zero.world_size, zero.rank = 2, 1
    assert name_of(parts).startswith("zero=1 ")
    assert [matter.text for matter in matters(parts) if "ZeroRedundancyOptimizer over all ranks" in matter.text]
    assert not matters(parts, backs_up=True)


@pytest.mark.usefixtures("group")
def test_one_that_overlaps_with_ddp_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, lr=1e-2)
    assert not is_partitioned(zero)
    parts = taskd.TrainState(model=model, optimizer=zero)._recovery.parts
    found = [matter for matter in matters(parts) if "overlap_with_ddp" in matter.text]
    assert len(found) == 1
    assert found[0].no_rebuild


def test_an_optimizer_inside_its_step_is_waited_for_where_the_state_is_in_parts() -> None:
    model = torch.nn.Linear(2, 2)
    inside, may_end = threading.Event(), threading.Event()

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            inside.set()
            assert may_end.wait(30)

    class Function:
        inside = True

        def __init__(self, recovery: StateRecovery) -> None:
            self.recovery = recovery

    state = taskd.TrainState(model=model, optimizer=Slow(model.parameters(), lr=0.1))
    function = Function(state._recovery)
    stepping = threading.Thread(target=state.optimizer.step)
    stepping.start()
    assert inside.wait(30)
    assert grace.await_step(function), "a state that is whole on every rank"
    function.recovery.replicas.name = "zero=1"
    assert not grace.await_step(function, limit_s=0.01)
    function.inside = False
    assert grace.await_step(function), "it has been left by an exception"
    function.inside = True
    threading.Timer(0.02, may_end.set).start()
    assert grace.await_step(function, limit_s=30)
    stepping.join()
