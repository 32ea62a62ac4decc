# ruff: noqa: B023
"""Names that a loop over a loader sets exist after it, even if a recovery finds its pass complete."""

import logging
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from taskd.adaptors.training.data import loop_names
from taskd.adaptors.training.proof.reading import go_on_as_before, read_function
from taskd.errors import RefusedError
from tests.training.test_counts import BATCHES, EPOCHS, NOTHING, Cut, Job, tqdm

Make = Callable[[Any], Callable[[], None]]


class EndingJob(Job):
    """Job that is cut off after its loops: at `ends_at`, counted over all epochs."""

    def __init__(self, ends_at: int = -1) -> None:
        super().__init__()
        self.ends, self.ends_at = 0, ends_at
        self.ahead: list[bool] = []

    def step(self, epoch: int, number: object, batch: Any) -> None:
        self.seen.append((epoch, number, batch[0].tolist()))
        self.committed = msgspec.msgpack.decode(self.state._recovery.parts.data_position(()))

    def end(self, *values: object) -> None:
        if self.ends == self.ends_at:
            raise Cut
        self.ends += 1
        self.seen.append(values)


def commit(job: EndingJob, epoch: int, number: object, batch: Any) -> None:
    job.state.commit()
    job.step(epoch, number, batch)


def has_names(job: EndingJob) -> bool:
    """Return whether a record made now would contain names of loops."""
    position = msgspec.msgpack.decode(job.state._recovery.parts.data_position(()))
    return any(key.startswith("\0names") for key in position)


def numbers(job: EndingJob) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            total, count = 0.0, 0
            for (rows,) in loader:
                loss = (rows.sum() * torch.ones((), requires_grad=True)).square()
                job.ahead.append(has_names(job))
                total, count = total + loss.item(), count + 1
                commit(job, epoch, None, (rows,))
            job.end(epoch, loss.item(), total / count, type(loss))

    return train


def in_a_function(job: EndingJob) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def pass_over(data: Any, epoch: int) -> tuple[float, int]:
        losses = []
        for i, (rows,) in enumerate(tqdm(data)):
            losses.append(rows.sum().item())
            commit(job, epoch, i, (rows,))
        return sum(losses) / len(losses), i

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            mean, last = pass_over(loader, epoch)
            job.end(epoch, mean, last)

    return train


def read_by_a_closure(job: EndingJob) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for (rows,) in loader:
                found = {"rows": rows.tolist(), "at": (epoch, 1.5, "text", None)}
                commit(job, epoch, None, (rows,))

            def last() -> Any:
                return found["rows"], found["at"]

            job.end(epoch, *last())

    return train


def replaced(job: EndingJob, train: Callable[[], None], make: Make, *, is_new: bool) -> Any:
    """Continue in the same process, or in another one."""
    seen, committed = job.seen, job.committed
    if is_new:
        job = EndingJob()
        train = make(job)
    job.go_back(committed)
    if is_new:
        go_on_as_before(train, NOTHING, job.state)
    job.seen, job.ends_at = [], -1
    train()
    return seen + job.seen


@pytest.mark.parametrize("make", [numbers, in_a_function, read_by_a_closure])
@pytest.mark.parametrize("is_new", [False, True])
def test_names_are_there(make: Make, *, is_new: bool) -> None:
    undisturbed = EndingJob()
    make(undisturbed)()
    assert undisturbed.ends == EPOCHS
    for ends_at in range(EPOCHS):
        job = EndingJob(ends_at)
        train = make(job)
        assert read_function(train, NOTHING, job.state) == []
        with pytest.raises(Cut):
            train()
        assert replaced(job, train, make, is_new=is_new) == undisturbed.seen


def too_large(job: EndingJob) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for (rows,) in loader:
                out = rows.new_zeros(4096)
                commit(job, epoch, None, (rows,))
            job.end(out.sum())

    return train


def test_what_cannot_be_kept_is_said_and_refused() -> None:
    told: list[str] = []
    job = EndingJob(1)
    train = too_large(job)
    assert read_function(train, NOTHING, job.state, told.append) == []
    with pytest.raises(Cut):
        train()
    (text,) = told
    assert text.startswith("'out' is read behind the loop at ")
    assert "(Tensor). At a fault behind that loop all processes start anew" in text
    with pytest.raises(RefusedError, match="has no batch left, and the last values of out were not recorded"):
        replaced(job, train, too_large, is_new=False)


def test_names_are_recorded_by_the_last_commit_of_a_pass_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The record at the end of a forward pass has none: they would be those of the step before."""
    caplog.set_level(logging.WARNING)
    job = EndingJob()
    train = numbers(job)
    read_function(train, NOTHING, job.state)
    recorded: list[bool] = []
    job.step = lambda *_: recorded.append(has_names(job))  # type: ignore[method-assign]
    train()
    assert recorded == ([False] * (BATCHES - 1) + [True]) * EPOCHS
    assert not any(job.ahead)
    assert not caplog.records


def test_locals_of_the_script_stay() -> None:
    """`locals()` returns the very dictionary that is read. It must not be emptied while the script holds it."""
    job = EndingJob()
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        rate = 0.5
        given = locals()
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for (rows,) in loader:
                loss = rows.sum() * rate
                commit(job, epoch, None, (rows,))
            job.end(loss.item(), given["rate"])

    assert read_function(train, NOTHING, state) == []
    train()
    assert job.ends == EPOCHS


def test_no_copy_of_the_variables_is_left_in_the_frame() -> None:
    """The copy would hold the last batch of each pass."""
    job = EndingJob()
    state, loader, sampler = job.state, job.loader, job.sampler
    held: list[Any] = []

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for (rows,) in loader:
                loss = rows.sum()
                large = rows.new_zeros(10_000)
                held.append(weakref.ref(large))
                commit(job, epoch, None, (rows,))
                del large
            assert held[-1]() is None
            job.end(loss.item())

    assert read_function(train, NOTHING, state) == []
    train()
    assert job.ends == EPOCHS


def test_what_has_no_bound_is_not_encoded() -> None:
    large = torch.zeros(1 << 20)
    for value in ([large] * 4, {"a": [large]}, Job, "x" * 5000, [[[[[1]]]]], torch.zeros(2).to_sparse()):
        assert loop_names._encoded(value) is None
    assert loop_names._encoded([1, "a", {"b": (torch.zeros(3), 2.5, None)}]) is not None


def test_the_position_matters_more_than_names() -> None:
    job = EndingJob()
    parts = job.state._recovery.parts
    for (_,) in job.loader:
        pass
    parts.keeping["loader"] = SimpleNamespace(pack_names=lambda: bytes(70_000))  # type: ignore[assignment]
    assert msgspec.msgpack.decode(parts.data_position(())).keys() == {"loader"}


def test_a_damaged_record_is_refused() -> None:
    job = EndingJob(0)
    train = numbers(job)
    read_function(train, NOTHING, job.state)
    with pytest.raises(Cut):
        train()
    (key,) = (key for key in job.committed if key.startswith("\0names"))
    job.committed[key] = job.committed[key][:-3]
    with pytest.raises(RefusedError, match="the last values of count, loss were not recorded"):
        replaced(job, train, numbers, is_new=False)
