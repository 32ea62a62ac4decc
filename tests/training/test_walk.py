"""State outside the state is found by looking, and what is none is not."""

import copy
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import taskd
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof import looks
from taskd.adaptors.training.proof.looks import EarlyLooks
from taskd.adaptors.training.proof.walk import Root, Walk
from taskd.adaptors.training.state import TrainState
from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.launch import Launcher

STEPS = 14
counter = 0
shown = 0
TABLE = {"seen": 0}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


Train = Callable[["Training"], Callable[[], object]]


class Training:
    """What every script here trains with."""

    def __init__(self, *, scheduled: bool = False, **parts: Any) -> None:
        torch.manual_seed(0)
        self.network = Network()
        self.optimizer: Any = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        given = parts.pop("optimizer", None)
        if given is not None:
            self.optimizer = given(self.network.parameters())
        self.state = TrainState(model=self.network, optimizer=self.optimizer, seed=1, **parts)

    def found(self, train: Callable[[], object]) -> list[str]:
        """Run the function to its end; what was told of it."""
        told: list[str] = []

        def refuse(*, no_rebuild: str, no_newcomer: str) -> None:
            told[:] = filter(None, [*no_rebuild.split("; "), no_newcomer])

        recovery = self.state._recovery
        early = EarlyLooks(Refusals(refuse, tells=True), recovery, lambda: None, looks=True)
        recovery.on_commit = lambda _step: early.committed()
        taskd.resilient(self.state)(train)()
        return told


class Average:
    """An average of the weights."""

    def __init__(self, module: nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        for name, value in module.named_parameters():
            self.shadow[name].mul_(0.9).add_(value, alpha=0.1)


class Saved(Average):
    """The same as a part of the state."""

    def state_dict(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.shadow.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state


class Mixing:
    """A callback that mixes the weights into a second model."""

    def __init__(self, reference: nn.Module) -> None:
        self.reference = reference

    @torch.no_grad()
    def on_step_end(self, step: int, policy: nn.Module) -> None:
        if step % 5 == 0:
            for old, new in zip(self.reference.parameters(), policy.parameters(), strict=True):
                old.data.mul_(0.5).add_(new.data, alpha=0.5)


class Progress:
    """How much was seen, which decides how much noise there is."""

    def __init__(self) -> None:
        self.seen = 0

    def noise(self) -> float:
        return max(0.0, 1 - self.seen / 4000)


class Meter:
    """A running mean for the log."""

    def __init__(self) -> None:
        self.sum, self.count, self.avg, self.last_s = 0.0, 0, 0.0, 0.0
        self.total = torch.zeros(())

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
        self.total += value
        self.last_s = time.time()

    def __str__(self) -> str:
        return f"{self.avg:.3f} after {self.count}"


class Stopper:
    """Early stopping."""

    def __init__(self, patience: int) -> None:
        self.patience, self.counter, self.lowest = patience, 0, 0.0

    def __call__(self, loss: float) -> bool:
        if loss < self.lowest:
            self.lowest, self.counter = loss, 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Around(torch.optim.Optimizer):
    """An optimizer around another one, whose momentum it does not save."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step(closure)


def step_of(training: Training, *, noise: float = 0.0, generator: torch.Generator | None = None) -> float:
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(training.state.step))
    rows = rows + noise * torch.randn(8, 4, generator=generator)
    training.optimizer.zero_grad()
    loss = training.network(rows).square().mean()
    loss.backward()
    training.optimizer.step()
    return float(loss.detach())


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
    lines = Path(__file__).read_text().splitlines()
    assert "self.shadow[name].mul_(0.9)" in lines[int(text.partition(f"({__file__}:")[2].partition(")")[0]) - 1]


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


def test_a_counter_that_decides_what_is_trained() -> None:
    one = Training()
    progress = Progress()

    def train() -> None:
        while one.state.step < 4:
            rows = torch.randn(8, 4) * progress.noise()
            progress.seen += len(rows)
            one.optimizer.zero_grad()
            loss = one.network(rows).square().mean()
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    (text,) = one.found(train)
    assert (
        text == f"progress.seen is changed by the training ({line_in(train, 3)}), and the TrainState does not have it"
    )


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


def line_in(function: Callable[..., object], further: int) -> str:
    code = function.__code__  # type: ignore[attr-defined]
    return f"{code.co_filename}:{code.co_firstlineno + further}"


class Counting(Sampler[int]):
    """Shuffles by the number of its own passes."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(8, generator=torch.Generator().manual_seed(self.passes))
        self.passes += 1
        return iter(order.tolist())


class Stream(IterableDataset[Any]):
    """Shuffles with one generator for all passes."""

    def __init__(self) -> None:
        self.rng, self.epoch = random.Random(5), 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        numbers = list(range(8))
        self.rng.shuffle(numbers)
        return iter([torch.full((4,), float(one)) for one in numbers])


class Rows(Dataset[Any]):
    """Counts what it is asked, for the log."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.full((4,), float(index))


class Wrapper:
    """Gives the sampler its epoch by the number of its own passes."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.calls = loader, 0

    def __iter__(self) -> Iterator[Any]:
        self.loader.sampler.set_epoch(self.calls)
        self.calls += 1
        yield from self.loader


def over_epochs(one: Training, batches: Any) -> Callable[[], None]:
    def train() -> None:
        for _ in one.state.epochs(2):
            for rows in batches:
                one.optimizer.zero_grad()
                loss = one.network(rows).square().mean()
                loss.backward()
                one.optimizer.step()
                one.state.commit()

    return train


def test_a_sampler_that_counts_its_passes() -> None:
    loader: Any = DataLoader(Rows(), batch_size=2, sampler=Counting())
    (text,) = (one := Training(loader=loader)).found(over_epochs(one, loader))
    assert text.startswith("loader.sampler.passes is changed by the training (")


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
    (text,) = one.found(over_epochs(one, batches))
    assert text.startswith("batches.calls is changed by the training (")


def test_what_only_reaches_output_is_none() -> None:
    """Meters, lists of losses, timers, sums, snapshots of the weights, and what each step makes anew."""
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
    """A loop in a class of the script's own, whose count comes from the state."""

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
    """Its attributes may not be asked for."""

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
    walk.run([Root("private", private)], 5.0)
    assert list(walk.seen) == ["private.inner['count']"]


def test_a_walk_ends_after_its_time_and_its_objects() -> None:
    roots = [Root(f"row {number}", [Progress() for _ in range(900)]) for number in range(90)]
    for limit_s in (60.0, 0.0):
        walk = Walk(frozenset(), frozenset())
        walk.run(roots, limit_s)
        assert not walk.whole
        assert len(walk.seen) < 30_000 * limit_s + 100


def test_the_function_keeps_nothing_alive_for_a_walk() -> None:
    """A frame that is asked for its variables keeps a copy of them, the step's loss among them."""
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


def test_a_job_names_it_before_the_fault_and_starts_anew(launcher: Launcher, run_dir: Any) -> None:
    undisturbed = Job(launcher, run_dir / "calm", 2)
    job = Job(launcher, run_dir / "struck", 2)
    for one in (undisturbed, job):
        one.folder.mkdir()
    undisturbed.start("early.py", {"steps": 8, "shape": "average"}, env={"TASKD_PROCESS_ENABLE": None})
    assert undisturbed.end() == 0, undisturbed.output
    plan = {"steps": 8, "shape": "average", "points": [point("one", 1, 6, "begin")]}
    job.start("early.py", plan, env={"TASKD_SELF_CHECK": "auto"})
    job.held("one")
    job.says("average.shadow['weight'] (and 1 more of it) is changed by the training (")
    assert "early.py:" in job.output
    job.kill("one")
    assert job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert not job.named("attempt failed")
    assert job.results() == undisturbed.results()
