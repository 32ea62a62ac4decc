"""A library's state beside models and optimizers is kept with a step that counts, and put back otherwise."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore

from taskd.adaptors.training.limits.refusals import alone, matters
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.restore import restore
from taskd.adaptors.training.sharding.shards import name_of, rows_of
from taskd.adaptors.training.state import TrainState
from taskd.errors import RestoreError
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition, WorldPlan


class Counted(LibraryPart):
    """Part that counts samples after the optimizer, by a number that it may not know."""

    def __init__(self) -> None:
        self.samples = self.marked = 0
        self.knows, self.peers_die = True, False
        self.heard: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.samples = state["samples"]

    def committed(self) -> None:
        self.marked = self.samples

    def settled(self) -> None:
        self.marked = self.samples

    def drop_step(self) -> None:
        self.heard.append("drop")

    def put_back(self) -> None:
        self.heard.append("put back")
        self.samples = self.marked

    def lags(self) -> bool:
        return not self.knows and self.samples == self.marked

    def follow(self) -> None:
        self.samples += 8 * (self.samples == self.marked)

    def complete(self) -> None:
        died, self.peers_die = self.peers_die, False
        if died:
            raise RuntimeError("Connection closed by peer")
        self.heard.append("complete")


def made() -> tuple[TrainState, Counted]:
    torch.manual_seed(0)
    model, part = nn.Linear(3, 3), Counted()
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), replicated={"library": part})
    state._recovery.begin(JobRank(0))
    return state, part


def forward_and_step(state: TrainState) -> None:
    state.model(torch.ones(1, 3)).sum().backward()
    state.optimizer.step()


def test_it_follows_a_step_that_counts_once() -> None:
    state, part = made()
    forward_and_step(state)
    state._recovery.adopt()
    assert (state.step, part.samples, part.marked) == (1, 8, 8)
    forward_and_step(state)
    part.samples += 8
    state._recovery.adopt()
    assert (state.step, part.samples) == (2, 16)


def test_a_step_does_not_count_where_it_cannot_follow() -> None:
    state, part = made()
    part.knows = False
    forward_and_step(state)
    assert state._recovery.condition() is Condition.TORN
    part.samples += 8
    assert state._recovery.condition() is Condition.STEPPED


def test_it_is_put_back_where_the_step_is_done_again() -> None:
    state, part = made()
    state.model(torch.ones(1, 3)).sum().backward()
    part.samples += 8
    assert state._recovery.condition() is Condition.CLEAN
    state._recovery.rollback()
    assert part.samples == 0


def go_back(state: TrainState) -> None:
    """Return to step 1 as in a world of one rank, which keeps its state."""
    plan = WorldPlan(
        generation=1, world_size=1, store_host="::1", store_port=1, target_step=1, adopt=(), transfers=(), timeout_s=1
    )
    restore(state._recovery, plan, WorldRank(0))
    state._recovery.do_again()


def test_all_ranks_complete_it_before_the_work_of_the_commit_is_done_again() -> None:
    state, part = made()
    state.after_commit(lambda step: part.heard.append(f"work {step}"))
    forward_and_step(state)
    state.commit()
    go_back(state)
    assert part.heard == ["work 1", "drop", "put back", "complete", "work 1"]


def test_a_peer_that_dies_as_it_is_completed_costs_another_recovery() -> None:
    state, part = made()
    forward_and_step(state)
    state.commit()
    part.peers_die = True
    with pytest.raises(RestoreError, match="a peer died"):
        go_back(state)
    assert state._recovery.condition() is Condition.CLEAN
    go_back(state)
    assert part.heard == ["drop", "put back", "drop", "put back", "complete"]


@pytest.mark.parametrize("cut", [{}, {"tp": 1, "pp": 0}])
def test_ranks_that_hold_other_parts_have_other_names(cut: dict[str, int]) -> None:
    state, part = made()
    part.coordinates = cut
    name, _, _ = name_of(state._recovery.parts).partition(" ")
    assert name == ",".join(f"{dimension}={where}" for dimension, where in sorted(cut.items()))


def test_what_it_says_stands_in_the_way_is_told() -> None:
    state, part = made()
    parts = state._recovery.parts
    assert not [*alone(parts), *matters(parts)]
    part.alone, part.refusal, part.remedy = "a shard of its own", "it is of another version", "Use another."
    assert [matter.text for matter in matters(parts)] == [
        "it is of another version",
        f"the TrainState made at {parts.made_at} has a shard of its own",
    ]


def test_it_may_say_why_there_are_no_rows() -> None:
    state, part = made()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert rows_of(state._recovery.parts, 0) is None
        part.no_rows = "ranks are numbered"
        assert rows_of(state._recovery.parts, 0) == "ranks are numbered"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["turn", "tau"])
def test_what_the_library_sets_anew_is_not_kept(name: str) -> None:
    state, part = made()
    part.set_anew = ("turn",)
    state = TrainState(model=state.model, optimizer=state.optimizer, replicated={"library": part})
    state._recovery.parts.plain.begin()
    setattr(state.model, name, 3)
    changed = [attribute for _, attribute, *_ in state._recovery.parts.plain.changed()]
    assert changed == ([] if name == "turn" else [name])
