"""A loader whose script fetches a batch ahead of its steps: after a recovery that batch is handed out again.

Runs are cut and compared as in `test_places`. The comparison leaves out samples that draw random numbers as they are
loaded: they are drawn once more.
"""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from taskd.adaptors.training.data.fetched_ahead import FetchedAhead
from taskd.adaptors.training.data.passes import Pass
from taskd.adaptors.training.proof.ahead import AheadTrial, can_be_tried
from taskd.adaptors.training.state import TrainState
from tests.training.loader_kinds import PER_EPOCH, plain, stateful
from tests.training.test_places import (
    EPOCHS,
    Log,
    after,
    disturbed,
    set_up,
    undisturbed,
    work,
)
from tests.training.test_places import Cut as Fault

Cut = tuple[int, str]


def ahead_of(batches: Any) -> Iterator[Any]:
    ready = None
    for batch in batches:
        if ready is not None:
            yield ready
        ready = batch
    if ready is not None:
        yield ready


class Asking:
    """Iterator that requests the next batch, or the end, before it gives one."""

    def __init__(self, loader: Any) -> None:
        self.batches = iter(loader)
        self.ready = next(self.batches, None)

    def next(self) -> Any:
        batch = self.ready
        if batch is not None:
            self.ready = next(self.batches, None)
        return batch


def known(state: TrainState) -> None:
    """Declare one batch fetched ahead, as a new process has it from the record."""
    if state.step == 0:
        place: Any = state._recovery.parts.places["loader"]
        place.ahead.settle(1)


def begin_epoch(state: TrainState, epoch: int) -> None:
    if isinstance(state.loader.sampler, DistributedSampler):
        state.loader.sampler.set_epoch(epoch)


def in_epochs(state: TrainState, log: Log, cut: Cut) -> None:
    known(state)
    for epoch in state.epochs(EPOCHS):
        begin_epoch(state, epoch)
        for batch in ahead_of(state.loader):
            work(state, log, epoch, batch, cut)


def asked_in_epochs(state: TrainState, log: Log, cut: Cut) -> None:
    known(state)
    for epoch in state.epochs(EPOCHS):
        begin_epoch(state, epoch)
        batches = Asking(state.loader)
        while (batch := batches.next()) is not None:
            work(state, log, epoch, batch, cut)


def by_steps(state: TrainState, log: Log, cut: Cut) -> None:
    known(state)
    for epoch in range(state.step // PER_EPOCH, EPOCHS):
        begin_epoch(state, epoch)
        for batch in ahead_of(state.loader):
            work(state, log, epoch, batch, cut)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def over_passes(state: TrainState, log: Log, cut: Cut) -> None:
    """Train over passes. The batch fetched after a pass's last one is the first of the next pass."""
    known(state)
    batches = ahead_of(endless(state.loader))
    while state.step < EPOCHS * PER_EPOCH:
        work(state, log, 0, next(batches), cut)


def over_passes_in_epochs(state: TrainState, log: Log, cut: Cut) -> None:
    """Train over passes within `state.epochs()`: a pass starts in the epoch before its own."""
    known(state)
    batches = ahead_of(endless(state.loader))
    for epoch in state.epochs(EPOCHS):
        while state.step < (epoch + 1) * PER_EPOCH:
            work(state, log, epoch, next(batches), cut)


def knowing_the_end(state: TrainState, log: Log, cut: Cut) -> None:
    """Train without a request for the end of a pass."""
    known(state)
    for epoch in state.epochs(EPOCHS):
        begin_epoch(state, epoch)
        batches = iter(state.loader)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None) if (state.step + 1) % PER_EPOCH else None
            work(state, log, epoch, batch, cut)
            batch = following


def left_early(state: TrainState, log: Log, cut: Cut) -> None:
    """Leave each pass after its second step, with a batch in hand."""
    known(state)
    for epoch in state.epochs(5):
        begin_epoch(state, epoch)
        for batch in ahead_of(state.loader):
            work(state, log, epoch, batch, cut)
            if state.step % 2 == 0:
                break


def seen(log: Log) -> Log:
    """Return the epochs and samples of a log."""
    return [entry[:2] for entry in log]


LOOPS = [in_epochs, asked_in_epochs, by_steps, over_passes, over_passes_in_epochs, knowing_the_end]
KINDS = ["plain", "shuffle", "distributed", "stateful sampler", "iterable"]
KINDS_OF = {train: KINDS if train is knowing_the_end else [*KINDS, "generator"] for train in LOOPS}
"""Kinds for each loop. torch's sampler draws once more from its generator when it is asked for the end."""


@pytest.mark.parametrize("newcomer", [False, True], ids=["survivor", "newcomer"])
@pytest.mark.parametrize(("train", "kind"), [(train, kind) for train in LOOPS for kind in KINDS_OF[train]])
def test_a_batch_that_was_fetched_ahead_is_handed_out_again(
    train: Callable[[TrainState, Log, Cut], None], kind: str, newcomer: bool
) -> None:
    whole = undisturbed(kind, train, None)
    steps = (0, 1, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 1, 2 * PER_EPOCH - 1, 2 * PER_EPOCH)
    for cut in [*((step, "committed") for step in steps if step), *((step, "working") for step in steps)]:
        step, log = disturbed(kind, train, None, cut, newcomer=newcomer)
        assert seen(log) == seen(after(whole, step)), cut


@pytest.mark.parametrize("newcomer", [False, True], ids=["survivor", "newcomer"])
def test_a_pass_that_is_left_with_a_batch_in_hand(newcomer: bool) -> None:
    whole = undisturbed("shuffle", left_early, None)
    for cut in [(3, "committed"), (4, "committed"), (6, "committed"), (5, "working")]:
        step, log = disturbed("shuffle", left_early, None, cut, newcomer=newcomer)
        assert seen(log) == seen(after(whole, step)), cut


def test_a_second_fault_before_a_batch_is_trained_on() -> None:
    whole = undisturbed("shuffle", in_epochs, None)
    state = set_up("shuffle")
    state._recovery.begin()
    with pytest.raises(Fault):
        in_epochs(state, [], (7, "committed"))
    for _ in range(2):
        state._recovery.return_to(7)
        log: Log = []
        with pytest.raises(Fault):
            in_epochs(state, log, (7, "working"))
        assert seen(log) == seen(after(whole, 7))[:1]


def place_with(batches: int, step: int = 1) -> FetchedAhead:
    """Return the position of a loader with `batches` fetched ahead, in this step."""
    ahead = FetchedAhead()
    ahead.settle(batches)
    ahead.due_step = lambda: step
    return ahead


def test_nothing_is_recorded_where_nothing_is_fetched_ahead() -> None:
    ahead = place_with(0)
    now = Pass(1, handed=3)
    assert not ahead.records
    assert ahead.place_of(now) is now


def test_the_end_of_a_pass_counts_until_another_batch_comes() -> None:
    ahead = place_with(1)
    now = Pass(1, number=0, over=False)
    for number in (1, 2):
        now.handed = number
        ahead.handed(now)
    assert ahead.place_of(now).handed == 1
    now.over = True
    ahead.ended(now)
    ahead.ended(now)  # as a script that requests the next batch before it inspects this one
    assert (ahead.place_of(now).handed, ahead.place_of(now).over) == (2, False)
    following = Pass(1, number=1, handed=1, over=False)
    ahead.handed(following)
    assert (ahead.place_of(following).number, ahead.place_of(following).handed) == (0, 2)


def test_a_step_that_asks_for_nothing_has_used_what_was_held() -> None:
    """The script is a prefetcher that knows the length of a pass."""
    ahead = place_with(1, step=4)
    now = Pass(1, number=0, over=False)
    for number in (1, 2):
        now.handed = number
        ahead.handed(now)
    assert (ahead.place_of(now).handed, ahead.left_at(now)) == (1, 1)
    ahead.due_step = lambda: 5
    assert (ahead.place_of(now), ahead.left_at(now)) == (now, 1)
    ahead.due_step = lambda: 6
    assert ahead.left_at(now) == 2


def test_a_pass_whose_iterator_was_given_up_is_over() -> None:
    ahead = place_with(1)
    now = Pass(1, number=0, over=False)
    for number in (1, 2):
        now.handed = number
        ahead.handed(now)
    now.over = True
    assert ahead.place_of(now) is now


def trial(kind: Callable[[], DataLoader[Any]], *, suspected: bool) -> tuple[TrainState, AheadTrial]:
    model = torch.nn.Linear(1, 1)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=kind())
    state._recovery.begin()
    return state, AheadTrial(state._recovery.parts, suspected=suspected)


def two_steps(state: TrainState, found: AheadTrial, ask: Callable[[], Any]) -> None:
    """Request a batch in each step, and one before the first."""
    ask()
    for _ in range(2):
        ask()
        state.commit()
    found.committed()


@pytest.mark.parametrize(("suspected", "first"), [(False, 0), (True, 1)])
def test_where_the_text_shows_it_a_batch_is_handed_out_again_at_once(suspected: bool, first: int) -> None:
    state, found = trial(plain, suspected=suspected)
    batches = iter(state.loader)
    numbers: list[Any] = []
    two_steps(state, found, lambda: numbers.append(next(batches)[0].tolist()))
    assert not state._recovery.parts.knows_place
    next(batches)
    assert found.leave() == first
    assert (found.batches, found.why_no_more == "") == (first, not suspected)
    state._recovery.return_to(2)  # which drops the record of requests
    if not suspected:
        assert not found.put_back()
        found.try_more()
    assert found.put_back()
    assert next(iter(state.loader))[0].tolist() == numbers[-1]
    assert found.end(exact=True) == {"loader": 1}
    assert state._recovery.parts.knows_place
    assert state._recovery.parts.places["loader"].ahead.batches == 1


def test_a_loader_that_hands_out_nothing_in_the_step_is_not_tried() -> None:
    state, found = trial(plain, suspected=True)
    batches = iter(state.loader)
    two_steps(state, found, lambda: next(batches))
    found.leave()
    assert (found.batches, found.put_back(), bool(found.why_no_more)) == (0, False, True)
    assert found.end(exact=True) == {}


def test_a_batch_that_another_thread_fetches_is_not_followed() -> None:
    state, found = trial(plain, suspected=True)
    batches = iter(state.loader)
    two_steps(state, found, lambda: next(batches))
    other = Thread(target=next, args=(batches,))
    other.start()
    other.join()
    assert found.leave() == 0


def test_a_step_that_came_out_otherwise_shows_nothing() -> None:
    state, found = trial(plain, suspected=True)
    batches = iter(state.loader)
    two_steps(state, found, lambda: next(batches))
    next(batches)
    found.leave()
    assert found.end(exact=False) == {}
    assert not state._recovery.parts.places["loader"].ahead.records  # type: ignore[union-attr]


def test_each_step_must_have_asked_for_a_batch() -> None:
    """With two commits per batch, a script would have no batch in hand at every other commit."""
    state, found = trial(plain, suspected=True)
    batches = iter(state.loader)
    next(batches), next(batches)
    state.commit()
    state.commit()
    found.committed()
    next(batches)
    assert found.leave() == 0


def test_with_two_loaders_nothing_is_tried() -> None:
    """A step's result for one loader shows nothing about the other, whose batches may matter later."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainState(model=model, optimizer=optimizer, loader=plain(), other=plain())
    state._recovery.begin()
    assert not can_be_tried(state._recovery.parts)
    found = AheadTrial(state._recovery.parts, suspected=False)
    batches = iter(state.loader)
    next(iter(state.other))
    two_steps(state, found, lambda: next(batches))
    next(batches)
    found.leave()
    assert found.why_no_more


@pytest.mark.parametrize(("ahead", "of_job", "expected"), [(1, True, 1), (1, False, 0), (5, True, 0), (-1, True, 0)])
def test_a_record_of_this_job_says_that_a_batch_is_fetched_ahead(ahead: int, of_job: bool, expected: int) -> None:
    """A checkpoint does not count: the script that loads it may be a different one."""
    state = set_up("plain")
    parts = state._recovery.parts
    packed = msgspec.msgpack.encode(Pass(1, number=0, handed=2, over=False, ahead=ahead))
    parts.unpack_positions({"loader": packed}, of_job=of_job)
    assert parts.places["loader"].ahead.batches == expected  # type: ignore[union-attr]


def test_a_loader_whose_batches_are_not_counted_cannot_be_tried() -> None:
    assert can_be_tried(trial(plain, suspected=False)[0]._recovery.parts)
    assert not can_be_tried(trial(stateful, suspected=False)[0]._recovery.parts)
    model = torch.nn.Linear(1, 1)
    bare = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert not can_be_tried(bare._recovery.parts)
