"""Facts that are equal on all ranks, but not after a fault: the ranks that survived the fault find them."""

import random
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

import taskd
from taskd.adaptors.training.proof.alike import AlikeRanks

assert fake_pg, "it registers the backend"


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Yield a world of two ranks that share a store. Both are in this process; nothing asks for the own rank."""
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    yield
    dist.destroy_process_group()


class Rank:
    """Counts of one rank."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = taskd.TrainState(model=self.model, optimizer=self.optimizer)
        self.found: list[str] = []
        self.world = 0
        self.alike = AlikeRanks(self.state._recovery, lambda: f"world {self.world}", self.found.append, lambda: None)
        self.alike.enter(after_fault=False)

    def recovers(self) -> None:
        self.world += 1
        self.alike.enter(after_fault=True)

    def step(self, *, evaluates: bool = False) -> None:
        self.model(torch.ones(1, 1)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.commit()
        if evaluates:
            self.alike._on_evaluation()
        self.alike.committed()


def steps(ranks: list[Rank], count: int) -> None:
    for _ in range(count):
        for rank in ranks:
            rank.step()


def evaluation(ranks: list[Rank], draws: Rank | None = None) -> None:
    """Evaluate on all ranks; one of them draws a number in its evaluation."""
    for rank in ranks:
        before = random.getstate()
        if rank is draws:
            random.random()
        rank.step(evaluates=True)
        random.setstate(before)


@pytest.mark.parametrize("early", [False, True])
def test_a_new_process_that_draws_a_number_more(*, early: bool) -> None:
    """`early`: the first fault comes before the first evaluation, so only recovered worlds have one."""
    ranks = [Rank(), Rank()]
    steps(ranks, 5)
    if not early:
        evaluation(ranks)
        steps(ranks, 2)
    for rank in ranks:
        rank.recovers()
    steps(ranks, 3)
    evaluation(ranks)
    steps(ranks, 2)
    for rank in ranks:
        rank.recovers()
    steps(ranks, 3)
    assert [rank.found for rank in ranks] == [[], []]
    evaluation(ranks, ranks[1])
    steps(ranks, 2)
    text = "the number of draws: alike on all ranks behind an evaluation before a fault, and not after it"
    assert [rank.found for rank in ranks] == [[text], [text]]
