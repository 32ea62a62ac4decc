"""Values that are no state outside the state are not found, and no walk does harm."""

import copy
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from taskd.adaptors.training.proof import looks
from taskd.adaptors.training.proof.walk import Walk, WalkRoot
from tests.training.walked import (
    STEPS,
    Average,
    Meter,
    Network,
    Progress,
    Rows,
    Saved,
    Training,
    over_epochs,
    step_of,
)

shown = 0


def test_an_average_in_the_state_is_none() -> None:
    torch.manual_seed(0)
    ema = Saved(Network())
    one = Training(replicated={"ema": ema})

    def train() -> None:
        while one.state.step < STEPS:
            step_of(one)
            ema.update(one.network)
            one.state.commit()

    assert one.found(train) == []


def test_what_only_reaches_output_is_none() -> None:
    """Meters, lists of losses, timers, sums, snapshots of the weights, and values that each step makes from scratch."""
    one = Training()
    meter, history, sums = Meter(), [0.0], torch.zeros(2)
    snapshot = {name: value.detach().clone() for name, value in one.network.named_parameters()}
    best = copy.deepcopy(one.network)

    def train() -> None:
        global shown  # noqa: PLW0603 - as scripts do
        own = Meter()
        total, begun = 0.0, time.time()
        while one.state.step < STEPS:
            before = [value.detach().clone() for value in one.network.parameters()]
            loss = step_of(one)
            total += loss
            sums[0] += loss
            meter.update(loss)
            own.update(loss, 8)
            history.append(loss)
            shown += 1
            one.last = {name: value.clone() for name, value in one.network.named_parameters()}  # type: ignore[attr-defined]
            for name, value in one.network.named_parameters():
                snapshot[name].copy_(value.detach())
            if loss < min(history):
                best.load_state_dict(one.network.state_dict())
            if one.state.step % 2 == 0:
                print(f"{meter} {own} {total:.2f} {sums[0]:.2f} {shown} {time.time() - begun:.0f} {len(before)}")
            one.state.commit()

    assert one.found(train) == []


def test_a_loop_over_epochs_with_an_evaluation_is_none() -> None:
    loader: Any = DataLoader(Rows(), batch_size=2, shuffle=True)
    one = Training(loader=loader)
    seen: list[float] = []

    def evaluate(step: int) -> None:
        one.network.eval()
        with torch.no_grad():
            seen.append(float(one.network(torch.ones(2, 4)).sum()) + step)
        one.network.train()

    one.state.after_commit(evaluate, every=3)
    assert one.found(over_epochs(one, loader)) == []
    assert seen


class Text(IterableDataset[torch.Tensor]):
    """Dataset with a position of its own, which the loader saves."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.at += 1
            yield torch.full((4,), float(self.at))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_what_a_loader_saves_of_its_dataset_is_none() -> None:
    """This includes objects reached through its iterator."""
    loader = StatefulDataLoader(Text(), batch_size=2)
    one = Training(data={"loader": loader})

    def train() -> None:
        batches = iter(loader)
        while one.state.step < STEPS:
            one.optimizer.zero_grad()
            one.network(next(batches)).sum().backward()
            one.optimizer.step()
            one.state.commit()

    assert one.found(train) == []


def test_what_is_seeded_in_each_step_is_none() -> None:
    one = Training()
    dice, other = torch.Generator(), random.Random()

    def train() -> None:
        while one.state.step < 4:
            dice.manual_seed(one.state.step)
            other.seed(one.state.step)
            rows = torch.randn(8, 4, generator=dice) * other.random()
            loss = one.network(rows).square().mean()
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    assert one.found(train) == []


class Trainer:
    """Loop in a class of the script's own, whose count comes from the state."""

    def __init__(self, one: Training) -> None:
        self.one, self.step, self.running = one, 0, 0.0

    def train(self) -> None:
        self.step = self.one.state.step
        while self.step < 6:
            self.running += step_of(self.one)
            self.step += 1
            self.one.state.commit()
        print(self.running)


def test_a_count_that_comes_from_the_states_step_is_none() -> None:
    one = Training()
    assert one.found(Trainer(one).train) == []


class Private:
    """Object whose attributes must not be read."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    @property
    def value(self) -> Any:
        raise AssertionError("a property was called")

    def __len__(self) -> int:
        raise AssertionError("its length was asked for")

    __bool__ = __iter__ = __eq__ = __hash__ = __repr__ = __len__  # type: ignore[assignment]


def test_no_code_of_the_scripts_is_called() -> None:
    walk = Walk(frozenset(), frozenset())
    private = Private()
    vars(private)["inner"] = {"one": Private(), "two": [Private()], "count": 3}
    walk.run([WalkRoot("private", private)], 5.0)
    assert list(walk.seen) == ["private.inner['count']"]


def test_a_walk_ends_after_its_time_and_its_objects() -> None:
    roots = [WalkRoot(f"row {number}", [Progress() for _ in range(900)]) for number in range(90)]
    for limit_s in (60.0, 0.0):
        walk = Walk(frozenset(), frozenset())
        walk.run(roots, limit_s)
        assert not walk.whole
        assert len(walk.seen) < 30_000 * limit_s + 100


def test_the_function_keeps_nothing_alive_for_a_walk() -> None:
    """A frame keeps a copy of its variables once they are read, with the step's loss among them."""
    one = Training()
    losses: list[Any] = []
    alive: list[bool] = []

    def train() -> None:
        import weakref

        while one.state.step < 5:
            loss = one.network(torch.ones(2, 4)).square().mean()
            losses.append(weakref.ref(loss))
            loss.backward()
            one.optimizer.step()
            one.state.commit()
            del loss
            alive.append(losses[-1]() is not None)

    one.found(train)
    assert alive == [False] * 5


def test_what_the_user_allows_is_told_and_not_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = Training()
    ema = Average(one.network)

    def train() -> None:
        while one.state.step < 4:
            step_of(one)
            ema.update(one.network)
            one.state.commit()

    monkeypatch.setattr(looks, "allows_inexact", lambda: True)
    assert one.found(train) == []
    assert "ema.shadow['first.weight']" in caplog.text


def test_what_fails_in_a_walk_ends_the_looks_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a walk that fails")

    one = Training()
    monkeypatch.setattr(Walk, "run", fail)
    caplog.set_level(logging.INFO)

    def train() -> None:
        while one.state.step < 5:
            step_of(one)
            one.state.commit()

    assert one.found(train) == []
    assert "the first steps could not be looked at" in caplog.text
    assert caplog.text.count("LookupError: ") == 1
