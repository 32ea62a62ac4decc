"""Any data loader continues at its exact position: in the interrupted process, and in one that takes its place.

A run is the data of a rank's script: the epoch, the samples, numbers drawn by workers and by the training. It is cut
off at a commit, or between two. The rest must equal that of an undisturbed run.
"""

import random
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
)

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition
from tests.thorough import everyday
from tests.training.loader_kinds import (
    BATCH,
    KINDS,
    PER_EPOCH,
    Epochal,
    plain,
)

EPOCHS = 3
Log = list[Any]


KEPT: weakref.WeakKeyDictionary[TrainState, Any] = weakref.WeakKeyDictionary()


class Cut(Exception):  # noqa: N818 - it stands for a fault
    """Fault."""


def set_up(kind: str, seed: int | None = None) -> TrainState:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    loader = KINDS[kind]()
    model = torch.nn.Linear(1, 1)
    return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader, seed=seed)


def work(state: TrainState, log: Log, epoch: int, batch: list[torch.Tensor], cut: tuple[int, str]) -> None:
    log.append((epoch, *(part.tolist() for part in batch), torch.rand(1).item(), random.random()))
    if cut == (state.step, "working"):
        raise Cut
    if cut == (state.step, "stepped"):
        state.model(torch.ones(1, 1)).sum().backward()
        state.optimizer.step()
        raise Cut
    state.commit()
    if cut == (state.step, "committed"):
        raise Cut


def with_epochs(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    for epoch in state.epochs(EPOCHS):
        if isinstance(state.loader.sampler, DistributedSampler | Epochal):
            state.loader.sampler.set_epoch(epoch)
        for batch in state.loader:
            work(state, log, epoch, batch, cut)
        log.append(("end", epoch, torch.rand(1).item()))
        if cut == (state.step, "end"):
            raise Cut


def by_steps(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    for epoch in range(state.step // PER_EPOCH, EPOCHS):
        if isinstance(state.loader.sampler, DistributedSampler | Epochal):
            state.loader.sampler.set_epoch(epoch)
        for batch in state.loader:
            work(state, log, epoch, batch, cut)


def next_of_kept(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    """Train with an iterator that is made once and outlives the training function."""
    batches = KEPT[state] if state in KEPT else iter(state.loader)
    while state.step < EPOCHS * PER_EPOCH:
        try:
            KEPT[state] = batches
            batch = next(batches)
        except StopIteration:
            KEPT[state] = batches = iter(state.loader)
            batch = next(batches)
        work(state, log, 0, batch, cut)


def next_of_iter(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    while state.step < EPOCHS * PER_EPOCH:
        work(state, log, 0, next(iter(state.loader)), cut)


def left_early(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    """Leave each epoch before its end, with a look at a batch before each call."""
    next(iter(state.loader))
    for epoch in range(state.step // 2, 4):
        for batch in state.loader:
            work(state, log, epoch, batch, cut)
            if state.step % 2 == 0:
                break


def left_in_epochs(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    """Train with batches left over in each epoch, after its last commit."""
    for epoch in state.epochs(5):
        if isinstance(state.loader.sampler, DistributedSampler | Epochal):
            state.loader.sampler.set_epoch(epoch)
        for batch in state.loader:
            work(state, log, epoch, batch, cut)
            if state.step % 2 == 0:
                break
        log.append(("end", epoch, torch.rand(1).item()))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Train = Callable[[TrainState, Log, tuple[int, str]], None]


def release(state: TrainState) -> None:
    """End workers that are kept, in order. The collector would take 5 s for each."""
    KEPT.pop(state, None)
    state.loader._iterator = None


def undisturbed(kind: str, train: Train, seed: int | None) -> Log:
    state, log = set_up(kind, seed), Log()
    state._recovery.begin(JobRank(0))
    train(state, log, (-1, ""))
    release(state)
    return log


def disturbed(kind: str, train: Train, seed: int | None, cut: tuple[int, str], *, newcomer: bool) -> tuple[int, Log]:
    """Return the committed step, and the log from there on."""
    state = set_up(kind, seed)
    state._recovery.begin(JobRank(0))
    with pytest.raises(Cut) as caught:
        train(state, [], cut)
    if cut[1] == "stepped":
        assert state._recovery.condition(caught.value) is Condition.STEPPED
        state._recovery.adopt()
    del caught  # the error holds iterators
    step = state.step
    payload = state._recovery.position(step)
    if newcomer:
        release(state)
        state = set_up(kind, seed)
        state._recovery.begin(JobRank(0))
        next(iter(state.loader))  # as a newcomer's set-up may
        with state._recovery.restoring(step):
            pass
    else:
        torch.rand(3), random.random()
    note = state._recovery.return_to(step, payload)
    assert newcomer or not note
    log = Log()
    train(state, log, (-1, ""))
    release(state)
    return step, log


def after(log: Log, step: int) -> Log:
    """Return the log after this number of steps. The end of an epoch belongs to the next step."""
    seen = 0
    for place, entry in enumerate(log):
        if entry[0] == "end":
            continue
        if seen == step:
            begin = place
            while begin > 0 and log[begin - 1][0] == "end":
                begin -= 1
            return log[begin:]
        seen += 1
    return log[len(log) - next((n for n, entry in enumerate(reversed(log)) if entry[0] != "end"), len(log)) :]


@pytest.mark.parametrize("newcomer", [False, True], ids=["survivor", "newcomer"])
@pytest.mark.parametrize(
    ("kind", "seed"), [*((kind, None) for kind in KINDS), ("shuffle", 5), ("own sampler", 5), ("workers", 5)]
)
def test_a_loop_over_epochs(kind: str, seed: int | None, newcomer: bool) -> None:
    """Cuts in the middle of an epoch, at its last batch, after its last commit, and in the code after its loop.

    One more cut makes a step count that was not committed.
    """
    whole = undisturbed(kind, with_epochs, seed)
    cuts = [(7, "working"), (PER_EPOCH, "committed"), (2 * PER_EPOCH, "end"), (0, "working")]
    if "workers" not in kind and "persistent" not in kind:
        cuts += [*((step, "committed") for step in (1, 4, 9)), (4, "stepped")]
    for cut in cuts:
        step, log = disturbed(kind, with_epochs, seed, cut, newcomer=newcomer)
        assert log == after(whole, step), cut


OTHER = [
    "shuffle",
    "generator",
    "distributed",
    "persistent",
    "iterable",
    "counts behind a pass",
    "counts epochs",
    "own epochs",
    "own passes",
]


@pytest.mark.parametrize("newcomer", everyday([False, True], True), ids=["survivor", "newcomer"])
@pytest.mark.parametrize(
    ("kind", "train"),
    [
        *((kind, train) for kind in OTHER for train in (by_steps, next_of_kept, next_of_iter)),
        ("torchdata", by_steps),
        ("torchdata with workers", by_steps),
    ],
)
def test_other_loops(kind: str, train: Train, newcomer: bool) -> None:
    whole = undisturbed(kind, train, None)
    for cut in [(7, "working"), (PER_EPOCH, "committed"), (PER_EPOCH, "working"), (4, "stepped")]:
        step, log = disturbed(kind, train, None, cut, newcomer=newcomer)
        assert log == after(whole, step), cut


def test_a_number_that_fits_no_record_is_left_out() -> None:
    """A seed of 128 bits, which the sampler changes in each pass."""
    state = set_up("counts passes")
    state.loader.sampler.passes = 1 << 127
    state._recovery.begin(JobRank(0))
    next(iter(state.loader))
    state.commit()
    assert state.loader.sampler.passes == (1 << 127) + 1


def test_an_epoch_that_is_left_early() -> None:
    whole = undisturbed("shuffle", left_early, None)
    for cut in [(3, "working"), (4, "committed"), (6, "working")]:
        step, log = disturbed("shuffle", left_early, None, cut, newcomer=True)
        assert [seen[:2] for seen in log] == [seen[:2] for seen in after(whole, step)], cut


@pytest.mark.parametrize("newcomer", everyday([False, True], True), ids=["survivor", "newcomer"])
@pytest.mark.parametrize(
    "kind",
    ["shuffle", "generator", "distributed", "replacement", "batch sampler", "workers", "counts passes", "own epochs"],
)
def test_batches_that_an_epoch_has_left_over_are_not_handed_out(kind: str, newcomer: bool) -> None:
    """This holds from the second epoch on. In the first, the leftover batches are still unknown."""
    whole = undisturbed(kind, left_in_epochs, None)
    for cut in [(4, "committed"), (6, "committed"), (5, "working")]:
        step, log = disturbed(kind, left_in_epochs, None, cut, newcomer=newcomer)
        assert log == after(whole, step), cut


def order_of(manual_seed: int | None, generator: int | None) -> list[int]:
    """Return the first pass of a rank's loader."""
    made = None if generator is None else torch.Generator().manual_seed(generator)
    torch.default_generator.manual_seed(
        67280421310721 if manual_seed is None else manual_seed
    )  # torch's seed at its start
    model = torch.nn.Linear(1, 1)
    loader = plain(shuffle=True, generator=made)
    TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader, seed=5)
    return [int(index) for batch in loader for index in batch[0]]


def test_where_the_order_of_a_pass_comes_from() -> None:
    assert order_of(1, None) == order_of(1, None) != order_of(2, None)
    assert order_of(1, 3) == order_of(2, 3) != order_of(1, 4)
    assert order_of(None, None) == order_of(None, None), "the same on all ranks"


def test_what_was_handed_out_is_not_loaded_again() -> None:
    state = set_up("shuffle")
    state._recovery.begin(JobRank(0))
    with pytest.raises(Cut):
        by_steps(state, [], (3, "committed"))
    payload = state._recovery.position(3)
    other = set_up("shuffle")
    other._recovery.return_to(3, payload)
    next(iter(other.loader))
    assert len(other.loader.dataset.loaded) == BATCH


def test_an_iterable_dataset_is_read_again_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    disturbed("iterable", by_steps, None, (3, "committed"), newcomer=True)
    assert "loader is iterable: 3 batches are loaded and dropped" in caplog.text


def test_an_epoch_that_begins_again_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    state = set_up("distributed")
    state._recovery.begin(JobRank(0))
    with pytest.raises(Cut):
        by_steps(state, [], (7, "committed"))
    state._recovery.return_to(7)
    state.loader.sampler.set_epoch(0)
    iter(state.loader)
    assert "stands in epoch 1, and the script begins epoch 0 again" in caplog.text


def test_iterating_a_loader_leaves_the_global_generators() -> None:
    for kind in ("shuffle", "own sampler", "workers"):
        state = set_up(kind)
        before = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
        if kind == "workers":
            next(iter(state.loader))
        else:
            iter(state.loader)._next_index()
        assert before == (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_script_that_skips_by_hand_is_told_so(caplog: pytest.LogCaptureFixture, by_hand: bool) -> None:
    state = set_up("plain")
    state._recovery.begin(JobRank(0))
    with pytest.raises(Cut):
        by_steps(state, [], (2, "committed"))
    state._recovery.return_to(2)
    for _ in islice(state.loader, 2 if by_hand else 0, None):
        state.commit()
    assert ("has passed over 2 more" in caplog.text) is by_hand
