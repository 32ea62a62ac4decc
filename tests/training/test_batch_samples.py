"""A new process's first batch is compared with that of the process before it."""

from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.adaptors.training.data.batch_samples import BatchSamples, sample_of
from taskd.adaptors.training.positions.late import OF_BATCH
from taskd.adaptors.training.positions.position_file import CAPACITY_BYTES
from taskd.adaptors.training.proof.first_batches import FirstBatches
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank

ROWS = 32


class Gained(Dataset[torch.Tensor]):
    """Rows of numbers, each multiplied by the gain."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(8.0).add(index) * self.gain


class Noisy(Gained):
    """Dataset that draws random numbers as its rows are loaded."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(8)


class Streamed(IterableDataset[torch.Tensor]):
    """The same rows as a stream."""

    def __init__(self, gain: float) -> None:
        self.rows = Gained(gain)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.rows[index] for index in range(ROWS))


class Unwilling(list[Any]):
    """List without slices."""

    def __getitem__(self, _index: Any) -> Any:
        raise TypeError("no slices")


class Process:
    """One process of one rank. With a folder, its positions are those of the previous process."""

    def __init__(
        self,
        folder: Path,
        gain: float,
        *,
        plain: bool = False,
        is_new: bool = False,
        workers: int = 0,
        streams: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.told: list[str] = []
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        rows: Any = Streamed(gain) if streams else Noisy(gain) if workers else Gained(gain)
        self.loader = DataLoader(rows, batch_size=2, num_workers=workers)
        part: Any = PlainPlace(self.loader) if plain else self.loader
        self.state = TrainState(model=self.model, optimizer=self.optimizer, data={"rows": part})
        self.recovery = self.state._recovery
        self.recovery.attach(str(folder / "position"))
        self.first = FirstBatches(self.recovery, self.told.append)
        if is_new:
            with self.recovery.restoring(3):
                pass
            assert self.recovery.return_to(3) == ""
        else:
            self.recovery.begin(JobRank(0))
        self.first.enter(is_new=is_new)
        self.batches = iter(self.loader)

    def forward(self, batches: int = 1) -> torch.Tensor:
        """Run a forward pass over this number of micro-batches, and no more."""
        for _ in range(batches):
            loss = self.model(next(self.batches)).mean()
        return loss

    def step(self, batches: int = 1) -> None:
        loss = self.forward(batches)
        loss.backward()
        self.optimizer.step()
        self.state.commit()
        self.first.committed()


def dead(folder: Path, *, plain: bool = False, workers: int = 0, streams: bool = False) -> None:
    """Run three steps and the forward pass of the fourth, in a process that then ends."""
    process = Process(folder, 1.0, plain=plain, workers=workers, streams=streams)
    for _ in range(3):
        process.step()
    process.forward()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_another_batch_is_told(tmp_path: Path, gain: float, *, plain: bool) -> None:
    dead(tmp_path, plain=plain)
    new = Process(tmp_path, gain, plain=plain, is_new=True)
    assert new.first.owes
    new.step()
    assert not new.told, "the recovery is not over"
    new.step()
    assert not new.first.owes
    told = "the batches of 'rows': a new process was given another one than the process before it"
    assert new.told == ([] if gain == 1.0 else [told])
    new.step()
    assert len(new.told) == (gain != 1.0)


def test_a_training_that_ends_before_it_is_judged_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead(tmp_path)
    new = Process(tmp_path, 1.5, is_new=True)
    new.step()
    new.first.close()
    (record,) = caplog.records
    assert record.getMessage().startswith("the training is not exact: the batches of 'rows'")
    assert not new.told


@pytest.mark.parametrize("plain", [False, True])
def test_noise_that_is_drawn_in_loader_processes(tmp_path: Path, *, plain: bool) -> None:
    """A trainer's loader leaves the workers' seeds as the library sets them: a new process has other seeds."""
    dead(tmp_path, plain=plain, workers=1)
    new = Process(tmp_path, 1.0, plain=plain, workers=1, is_new=True)
    for _ in range(2):
        new.step()
    assert bool(new.told) is plain


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_a_step_of_several_batches_is_compared_by_the_one_that_was_put_down(tmp_path: Path, gain: float) -> None:
    """The process died after the second of three batches: the comparison uses the second."""
    process = Process(tmp_path, 1.0)
    for _ in range(3):
        process.step(3)
    process.forward(2)
    new = Process(tmp_path, gain, is_new=True)
    for _ in range(2):
        new.step(3)
    assert len(new.told) == (gain != 1.0)


def test_a_fault_before_it_is_judged_does_not_make_it_forget(tmp_path: Path) -> None:
    dead(tmp_path)
    new = Process(tmp_path, 1.5, is_new=True)
    new.step()
    new.first.enter(is_new=False)
    for _ in range(2):
        assert not new.told
        new.step()
    assert new.told


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_a_second_new_process_is_compared_with_the_first_one_of_all(tmp_path: Path, gain: float) -> None:
    """The process in between died before it could compare."""
    dead(tmp_path)
    Process(tmp_path, 1.5, is_new=True).forward()
    new = Process(tmp_path, gain, is_new=True)
    for _ in range(2):
        new.step()
    assert bool(new.told) is (gain != 1.0)


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_the_first_batch_of_a_stream(tmp_path: Path, gain: float) -> None:
    dead(tmp_path, streams=True)
    new = Process(tmp_path, gain, is_new=True, streams=True)
    for _ in range(2):
        new.step()
    assert bool(new.told) is (gain != 1.0)


def test_a_batch_that_was_changed_before_it_is_handed_out_again(tmp_path: Path) -> None:
    """A process that survived a fault changed it, and died in the same step."""
    process = Process(tmp_path, 1.0, plain=True)
    for _ in range(3):
        process.step()
    next(process.batches).zero_()
    process.recovery.redo()
    process.batches = iter(process.loader)
    process.forward()
    new = Process(tmp_path, 1.0, plain=True, is_new=True)
    for _ in range(2):
        new.step()
    assert not new.told


def test_a_position_without_room_for_them_is_recorded_without_them(tmp_path: Path) -> None:
    parts = Process(tmp_path, 1.0).recovery.parts
    samples = parts.samples["rows"]
    samples.handed(0, 1, b"")
    buffers = [bytes(CAPACITY_BYTES - 160)]
    assert OF_BATCH.encode() in parts.data_position(buffers)
    samples.newest += bytes(160)
    found = parts.data_position(buffers)
    assert found
    assert OF_BATCH.encode() not in found


def test_a_process_that_lives_on_expects_nothing(tmp_path: Path) -> None:
    process = Process(tmp_path, 1.0)
    process.step()
    process.forward()
    process.first.enter(is_new=False)
    assert not process.first.owes


def test_a_process_that_died_before_its_forward_pass_tells_nothing(tmp_path: Path) -> None:
    process = Process(tmp_path, 1.0)
    for _ in range(3):
        process.step()
    new = Process(tmp_path, 1.5, is_new=True)
    for _ in range(2):
        new.step()
    assert not new.told


def test_batches_of_a_world_of_another_size_are_not_compared(tmp_path: Path) -> None:
    dead(tmp_path)
    new = Process(tmp_path, 1.5, is_new=True)
    new.recovery.parts.sample_batches(world_size=2)
    for _ in range(2):
        new.step()
    assert not new.told


def test_a_batch_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    dead(tmp_path)
    new = Process(tmp_path, 1.5, is_new=True)
    for _ in range(2):
        new.model(torch.ones(2, 8)).mean().backward()
        new.optimizer.step()
        new.state.commit()
        new.first.committed()
    assert not new.first.owes
    assert not new.told


def test_what_is_put_down_of_a_batch_is_not_seen_as_a_move_behind_the_forward_pass(tmp_path: Path) -> None:
    """A batch is fetched after it, but the position in the data does not change."""
    process = Process(tmp_path, 1.0)
    process.recovery.late.begin()
    samples = process.recovery.parts.samples["rows"]
    for step in range(3):
        loss = process.forward()
        samples.handed(step, 0, sample_of(torch.ones(step + 1)))
        loss.backward()
        process.optimizer.step()
        process.state.commit()
    process.forward()
    assert process.recovery.late.why_stale(4) == ""


DENSE = torch.arange(100.0)


@pytest.mark.parametrize(
    "batch",
    [DENSE, [DENSE], (DENSE, 1), {"a": "text", "x": DENSE}, [[DENSE]], UserDict(x=DENSE), ["text", DENSE, 3]],
    ids=lambda batch: type(batch).__name__,
)
def test_some_bytes_of_a_batch_are_read(batch: Any) -> None:
    then = sample_of(batch)
    assert then
    assert sample_of(batch) == then
    DENSE[40] += 1
    assert sample_of(batch) != then


@pytest.mark.parametrize(
    "batch",
    [
        None,
        3,
        "text",
        b"bytes",
        [],
        [1] * 1000,
        np.ones(100),
        torch.ones(100, device="meta"),
        torch.eye(30).to_sparse(),
        torch.ones(40).to_mkldnn(),
        torch.ones(4, 4).t()[1:],
        torch.ones(1).expand(100),
        nn.Parameter(torch.ones(3)),
        Unwilling([DENSE]),
        {},
        {"a": DENSE, "b": "text"},
        [[[[DENSE]]]],
        {1, 2},
    ],
    ids=lambda batch: f"{type(batch).__name__} {str(batch)[:12]!r}",
)
def test_what_cannot_be_read_cheaply_and_safely_is_left(batch: Any) -> None:
    assert sample_of(batch) == b""


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 100])
def test_nothing_behind_a_tensor_is_read(size: int) -> None:
    room = torch.zeros(3 * size + 300, dtype=torch.uint8)
    inner = room[size : 2 * size]
    then = sample_of(inner)
    room[:size] = 1
    room[2 * size :] = 1
    assert sample_of(inner) == then
    assert bool(then) is bool(size)


def test_a_tensor_whose_memory_was_freed_is_not_read() -> None:
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    assert sample_of(freed) == b""


def test_the_order_of_keys_does_not_matter() -> None:
    """The order may come from a set, which has another order in each process."""
    fields = {name: torch.full((40,), float(number)) for number, name in enumerate("abc")}
    assert sample_of(fields) == sample_of(dict(reversed(fields.items())))


def test_a_batch_is_compared_once() -> None:
    one = BatchSamples()
    one.handed(2, 5, b"then")
    one.expected = one.newest
    one.handed(2, 4, b"now")
    one.handed(1, 5, b"now")
    assert not one.differs
    assert one.expected
    one.handed(2, 5, b"now")
    assert one.differs
    assert not one.expected
