"""The rank of a node that copies a state held by several; no copy calls a collective that the others do not."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from taskd.adaptors.training.copies import sharing
from taskd.adaptors.training.copies.ring import earlier_on_node
from taskd.adaptors.training.copies.sharing import copies_state, state_key
from taskd.adaptors.training.copies.tally import Tally
from taskd.adaptors.training.state import TrainState
from taskd.adaptors.training.tripwire import Interrupted, Tripwire, interrupt
from taskd.errors import CopyError
from taskd.runtime.worker import stacks
from taskd.wire.kinds import JobRank


def ask(question: Callable[[], object]) -> object:
    return question()


def no_pause() -> Iterator[None]:
    while True:
        yield


def test_the_first_of_a_node_that_holds_a_state_copies_it() -> None:
    """Ranks 0 and 1 hold the same state. Rank 2 has other weights, and rank 3 the same as rank 2."""
    store, found = HashStore(), []
    for number, held in enumerate((" a", " a", " b", " b")):
        rank = JobRank(number)
        found.append(copies_state(store, rank, earlier_on_node(rank, range(4), 4), held, ask, no_pause()))  # type: ignore[arg-type]
    assert found == [True, False, True, False]


def test_each_node_has_its_own() -> None:
    members = tuple(map(JobRank, range(4)))
    assert [earlier_on_node(rank, members, 2) for rank in members] == [(), (0,), (), (2,)]


def test_who_is_not_heard_of_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "CONNECT_S", 0.0)
    with pytest.raises(CopyError, match="rank 0 makes none"):
        copies_state(HashStore(), JobRank(1), [JobRank(0)], " a", ask, no_pause())


def test_what_is_held_is_told_by_the_newest_digest() -> None:
    model = torch.nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    replicas = state._recovery.replicas
    replicas.weights = ("first", "second")
    assert state_key(replicas) == "state  second"


def test_copies_are_due_as_often_as_they_cost_so_much() -> None:
    tally = Tally(whole=1, stall_s=0.01, busy_s=0.03, by_step=[(4, 1.0), (5, 1.1)])
    assert tally.due_after(5, 5, 0) == 5 + 20, "0.04 s each, of steps of 0.1 s"
    assert tally.due_after(5, 40, 0) == 41
    assert tally.due_after(5, 5, 4) == 8


def test_a_copy_that_no_single_death_needs_is_made_every_five_seconds() -> None:
    """The first copies come sooner, so a short training loses a quarter of its time at most."""
    steps = [(4, 100.0), (5, 100.125)]
    tally = Tally(whole=1, stall_s=0.001, busy_s=0.004, by_step=steps, begun_s=0.0)
    assert tally.due_after(5, 5, 0) == 5 + 2, "0.25 s, by the cost"
    assert tally.due_after(5, 5, 0, rests=True) == 5 + 40, "5 s"
    assert replace(tally, begun_s=98.125).due_after(5, 5, 0, rests=True) == 5 + 4, "a quarter of 2 s"
    assert replace(tally, busy_s=1.0).due_after(5, 5, 0, rests=True) > 5 + 399, "50 s, by the cost"
    assert tally.due_after(5, 5, 4, rests=True) == 8, "the script has set it"


# ---- collectives of a state_dict()


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    stacks.trains_here()
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_collective_is_an_error_where_it_is_forbidden() -> None:
    wire = Tripwire(lambda: True, interrupt)
    with wire.forbid("no collectives here"):
        with pytest.raises(RuntimeError, match="no collectives here"):
            dist.all_reduce(torch.zeros(1))
        other = threading.Thread(target=dist.all_reduce, args=(torch.zeros(1),))
        other.start()
        other.join()
    dist.all_reduce(torch.zeros(1))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("lifted", [True, False], ids=["lifted within", "lifted later"])
def test_a_pause_that_comes_meanwhile_is_not_lost(lifted: bool) -> None:
    wire = Tripwire(lambda: True, interrupt)
    with wire.forbid("no collectives here"):
        wire.lay()
        with pytest.raises(Interrupted):
            dist.all_reduce(torch.zeros(1))
        if lifted:
            wire.lift()
    if not lifted:
        with pytest.raises(Interrupted):
            dist.all_reduce(torch.zeros(1))
        wire.lift()
    dist.all_reduce(torch.zeros(1))
