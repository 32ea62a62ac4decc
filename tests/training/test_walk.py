"""A walk through a script's objects finds state outside the state."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from taskd.adaptors.training.proof import own_states
from taskd.adaptors.training.proof.reentry import ProofOutlook
from taskd.adaptors.training.state import TrainState
from tests.training import walked
from tests.training.walked import (
    STEPS,
    Around,
    Average,
    Counting,
    Mixing,
    Network,
    Progress,
    Rows,
    Split,
    Stopper,
    Stream,
    Training,
    Wrapper,
    WrapperOfData,
    line_in,
    over_epochs,
    step_of,
)

counter = 0


TABLE = {"seen": 0}


def test_an_average_in_a_closure() -> None:
    one = Training()
    ema = Average(one.network)

    def train() -> None:
        while one.state.step < 4:
            step_of(one)
            ema.update(one.network)
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("ema.shadow['first.weight'] (and 3 more of it) is changed by the training (")
    file, _, line = text.partition(" is changed by the training (")[2].partition(")")[0].partition(":")
    assert file == walked.__file__
    assert "self.shadow[name].mul_(0.9)" in Path(file).read_text().splitlines()[int(line) - 1]


def test_an_average_that_the_function_makes() -> None:
    one = Training()

    def train() -> None:
        ema = Average(one.network)
        while one.state.step < 4:
            step_of(one)
            ema.update(one.network)
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("ema.shadow['first.weight']")


def test_a_second_model_that_a_callback_mixes() -> None:
    one = Training()
    callbacks = [Mixing(copy.deepcopy(one.network))]

    def train() -> None:
        while one.state.step < STEPS:
            step_of(one)
            for callback in callbacks:
                callback.on_step_end(one.state.step + 1, one.network)
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("callbacks[0].reference.first.weight (and 3 more of it) is changed by the training")


def test_what_an_optimizer_does_not_save() -> None:
    one = Training(optimizer=Around)

    def train() -> None:
        while one.state.step < 4:
            step_of(one)
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("optimizer.base.state[0]['momentum_buffer'] (and 3 more of it) is changed")
    assert f"(the training function: {__file__}:{train.__code__.co_firstlineno})" in text


def noisy(one: Training, progress: Progress) -> Callable[[], None]:
    """Return a training function whose counter decides how much noise there is."""

    def train() -> None:
        while one.state.step < STEPS:
            rows = torch.randn(8, 4) * progress.noise()
            progress.seen += len(rows)
            one.optimizer.zero_grad()
            loss = one.network(rows).square().mean()
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    return train


def test_a_counter_that_decides_what_is_trained() -> None:
    one = Training()
    progress = Progress()

    train = noisy(one, progress)
    (text,) = one.found(train)
    assert (
        text == f"progress.seen is changed by the training ({line_in(train, 3)}), and the TrainState does not have it"
    )


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_proof_is_to_follow_of_is_taken_in(caplog: pytest.LogCaptureFixture, *, exact: bool) -> None:
    """It is refused until then, and for good if the proof fails."""
    one = Training()
    progress = Progress()

    train = noisy(one, progress)
    told = one.found(train, ProofOutlook.TO_COME)
    text = f"progress.seen is changed by the training ({line_in(train, 3)}), and the TrainState does not have it"
    assert told == [text]
    assert not one.refusals.of_newcomers
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{text}: taskd keeps it with the state from now on.")
    ((path, _),) = one.state._recovery.parts.taken.sent()
    assert path == "progress.seen"
    seen, progress.seen = progress.seen, 0
    one.state._recovery.rollback()
    assert progress.seen == seen
    one.refusals.prove(exact=exact)
    assert told == ([] if exact else [text])
    assert one.refusals.of_newcomers is not exact


def test_what_was_proven_before_is_taken_in() -> None:
    """The proof was made in an earlier start of the job."""
    one = Training()
    assert one.found(noisy(one, Progress()), ProofOutlook.EXACT) == []
    assert one.state._recovery.parts.taken.any


@pytest.mark.parametrize("kept", ["read", "printed", "alone"])
def test_what_may_be_made_of_a_list_that_grows_is_not_taken_in(kept: str) -> None:
    """A new process would have the number but an empty list, so its next number would differ from its peers'."""
    one, progress = Training(), Progress()
    losses: list[float] = []

    def read(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        progress.seen += 1 if losses[-1] < losses[0] else 2

    def printed(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        progress.seen += 1
        print(losses[-1])

    def alone(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        progress.seen += 1

    note = {"read": read, "printed": printed, "alone": alone}[kept]

    def train() -> None:
        while one.state.step < 4:
            loss = one.network(torch.randn(8, 4) * progress.noise()).square().mean()
            loss.backward()
            one.optimizer.step()
            note(loss)
            one.state.commit()

    one.found(train, ProofOutlook.EXACT)
    assert one.state._recovery.parts.taken.any is (kept != "read")


def test_what_a_loader_leads_to_is_not_taken_in() -> None:
    """A loader that continues at a position reads its data again."""
    made: Any = DataLoader(Stream(), 2)
    one = Training(loader=made)
    (text,) = one.found(over_epochs(one, made), ProofOutlook.EXACT)
    assert text.startswith("loader.")
    assert not one.state._recovery.parts.taken.any


def test_a_sampler_that_the_function_looks_at_is_of_the_data_too() -> None:
    """The function's own name for it leads there before the loader does. Its count is put back."""
    counting = Counting()
    batches = DataLoader(Rows(), batch_size=2, sampler=counting)
    one = Training(loader=batches)

    def train() -> None:
        for _ in one.state.epochs(2):
            for rows in batches:
                assert counting.passes
                loss = one.network(rows).square().mean()
                loss.backward()
                one.optimizer.step()
                one.state.commit()

    assert not one.found(train, ProofOutlook.EXACT)
    assert not one.state._recovery.parts.taken.any


def test_a_counter_on_the_function_and_a_global_one_and_one_in_a_table() -> None:
    one = Training()

    def train() -> None:
        global counter  # noqa: PLW0603 - as scripts do
        while one.state.step < 4:
            counter += 1
            train.calls += 1  # type: ignore[attr-defined]
            TABLE["seen"] += 1
            rows = torch.randn(8, 4) * (0.9**counter) * train.calls / TABLE["seen"]  # type: ignore[attr-defined]
            loss = one.network(rows).square().mean()
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    train.calls = 0  # type: ignore[attr-defined]
    assert {text.partition(" ")[0] for text in one.found(train)} == {"counter", "train.calls", "TABLE['seen']"}


def test_weights_of_losses_in_a_table_that_is_set_by_a_variable_key() -> None:
    one = Training()
    weights = {"left": 1.0, "right": 1.0}

    def reweigh(loss: torch.Tensor) -> None:
        for name in weights:  # noqa: PLC0206 - as scripts do
            weights[name] = 0.8 * weights[name] + 0.2 * loss.item()

    def train() -> None:
        while one.state.step < 4:
            made = one.network(torch.randn(8, 4))
            loss = weights["left"] * made[:, 0].square().mean() + weights["right"] * made[:, 1].square().mean()
            loss.backward()
            one.optimizer.step()
            reweigh(loss)
            one.state.commit()

    found = one.found(train)
    assert {text.partition(" ")[0] for text in found} == {"weights['left']", "weights['right']"}
    assert all(line_in(reweigh, 2) in text for text in found)


def test_early_stopping_that_ends_the_loop() -> None:
    one = Training()
    stopper = Stopper(100)

    def train() -> None:
        while one.state.step < 4:
            loss = step_of(one)
            if stopper(loss):
                break
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("stopper.counter is changed by the training (")


def test_a_generator_of_the_scripts() -> None:
    one = Training()
    dice = torch.Generator().manual_seed(3)

    def train() -> None:
        while one.state.step < 4:
            rows = torch.randn(8, 4, generator=dice)
            loss = one.network(rows).square().mean()
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    (text,) = one.found(train)
    assert text.startswith("dice is changed by the training (")


def test_a_sampler_that_counts_its_passes() -> None:
    loader: Any = DataLoader(Rows(), batch_size=2, sampler=Counting())
    assert not (one := Training(loader=loader)).found(over_epochs(one, loader))


def test_a_stream_with_a_memory() -> None:
    loader: Any = DataLoader(Stream(), batch_size=2)
    (text,) = (one := Training(loader=loader)).found(over_epochs(one, loader))
    assert text.startswith("loader.dataset.rng is changed by the training (")


def test_a_wrapper_that_counts_its_passes() -> None:
    data = Rows()
    sampler: Any = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
    loader: Any = DataLoader(data, batch_size=2, sampler=sampler)
    one = Training(loader=loader, sampler=sampler)
    batches = Wrapper(loader)
    assert not one.found(over_epochs(one, batches))


def test_a_wrapper_that_counts_for_more_than_its_sampler() -> None:
    """The epoch of a dataset is not corrected."""
    data = Rows()
    sampler: Any = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0)
    loader: Any = DataLoader(data, batch_size=2, sampler=sampler)
    one = Training(loader=loader, sampler=sampler)
    (text,) = one.found(over_epochs(one, WrapperOfData(loader)))
    assert ".calls is changed by the training (" in text


@pytest.mark.parametrize(
    ("ranks", "weights", "told"), [((0, 1), (0, 0), True), ((0, 0), (0, 0), False), ((0, 1), (0, 5), False)]
)
def test_an_optimizer_whose_state_differs_between_ranks(
    ranks: tuple[int, int], weights: tuple[int, int], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the weights differ too, this is not reported."""
    store = dist.HashStore()
    found: list[list[str]] = []
    for order in ((0, 1), (0,)):  # the first rank cannot know it yet at its first query
        for rank in order:
            torch.manual_seed(weights[rank])
            network = Network()
            optimizer = Split(network.parameters(), ranks[rank])
            optimizer.step()
            parts = TrainState(model=network, optimizer=optimizer)._recovery.parts
            found.append(own_states.compare(parts, store, rank))
    assert found[1:] == [["optimizer"] if told else []] * 2


class RankAverage:
    """Average with a buffer, in a state dict as people write it."""

    def __init__(self, buffer: float) -> None:
        self.values = {"mean": [torch.full((3,), buffer)], "count": 1}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.values = values


class OfTaskd(RankAverage):
    """taskd's part for a trainer. It declares by itself which values are each rank's own."""

    __module__ = "taskd.adaptors.trainers"


@pytest.mark.parametrize(
    ("kind", "buffers", "told"),
    [(RankAverage, (1.0, 1.0), False), (RankAverage, (1.0, 2.0), True), (OfTaskd, (1.0, 2.0), False)],
)
def test_an_average_that_differs_between_ranks(
    kind: type[RankAverage], buffers: tuple[float, float], *, told: bool
) -> None:
    store = dist.HashStore()
    found: list[list[str]] = []
    for rank in (0, 1, 0):  # the first rank cannot know it yet at its first query
        torch.manual_seed(0)
        network = Network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        average = kind(buffers[rank])
        parts = TrainState(model=network, optimizer=optimizer, replicated={"average": average})._recovery.parts
        found.append(own_states.compare(parts, store, rank))
    assert found[1:] == [["average"] if told else []] * 2
