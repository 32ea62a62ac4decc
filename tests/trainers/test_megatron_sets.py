"""Ranks that hold the same part of a Megatron model, as read from its groups. No library is needed."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from taskd.adaptors.trainers.megatron.replica_sets import alone, coordinates, dividing


@dataclass
class Group:
    """The part of a process group that is read."""

    at: int
    length: int

    def rank(self) -> int:
        return self.at

    def size(self) -> int:
        return self.length


@dataclass
class Wrapper:
    """The wrapper of a chunk."""

    tp_group: Group = field(default_factory=lambda: Group(0, 1))
    pp_group: Any = field(default_factory=lambda: Group(0, 1))
    dp_cp_group: Group = field(default_factory=lambda: Group(0, 2))
    expt_dp_group: Group = field(default_factory=lambda: Group(0, 1))
    expert_parallel_buffers: tuple[Any, ...] = ()
    instances: int = 1

    @property
    def ddp_config(self) -> Any:
        return SimpleNamespace(num_distributed_optimizer_instances=self.instances)


@dataclass
class Divided:
    """A distributed optimizer."""

    data_parallel_group: Group


def test_data_parallel_ranks_hold_the_same() -> None:
    assert coordinates([Wrapper()], [object()]) == {}
    assert not alone([Wrapper()], [object()])


@pytest.mark.parametrize("stages", [Group(1, 4), [Group(1, 4), Group(0, 2)]])
def test_tensor_and_pipeline_ranks_do_not(stages: Any) -> None:
    assert coordinates([Wrapper(tp_group=Group(1, 2), pp_group=stages)], []) == {"tp": 1, "pp": 1}


def test_nor_do_those_of_a_distributed_optimizer() -> None:
    optimizers = [Divided(Group(1, 2)), Divided(Group(0, 4)), Divided(Group(0, 1))]
    assert len([*dividing(optimizers)]) == 2
    assert coordinates([Wrapper()], optimizers) == {"shard": 1, "shard1": 0}
    assert "over 2 ranks" in alone([Wrapper()], optimizers)


def test_several_instances_of_it_hold_the_same_shards() -> None:
    assert not alone([Wrapper(instances=2)], [Divided(Group(1, 2))])


def test_without_data_parallel_ranks_nobody_has_the_same() -> None:
    assert "without data-parallel ranks" in alone([Wrapper(dp_cp_group=Group(0, 1))], [object()])


def test_experts_may_be_of_one_rank_alone() -> None:
    assert "experts" in alone([Wrapper(expert_parallel_buffers=(object(),))], [object()])
    assert not alone([Wrapper(expert_parallel_buffers=(object(),), expt_dp_group=Group(0, 2))], [object()])
