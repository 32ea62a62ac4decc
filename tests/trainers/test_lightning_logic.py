"""The state that the Lightning adapter keeps and restores, without Lightning."""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from taskd.adaptors.trainers.lightning.attributes import Attributes
from taskd.adaptors.trainers.lightning.batches import Handed, kept
from taskd.adaptors.trainers.lightning.encoding import MOST, decode, encode, is_plain
from taskd.adaptors.trainers.lightning.loops import LoopCounters
from taskd.adaptors.trainers.lightning.writing import Files, Lines
from taskd.adaptors.trainers.marks import Marks
from taskd.runtime.folders.nameless import KeptMemory

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, "a", b"b", [1, [2.5, "x"]], (1, (2,)), {"a": [1], 3: "b"}, {1, 2},
        torch.tensor(0.1), torch.tensor(float("inf")), torch.tensor(7), torch.tensor(True), torch.tensor([1.5, 2.5]),
        torch.tensor(0.1, dtype=torch.bfloat16), [torch.tensor(1.5), {"b": torch.tensor([1, 2])}],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_put_down_comes_back(value: object) -> None:
    again = decode(encode(value), CPU)
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    assert is_plain(value)


def test_a_queue_keeps_its_length() -> None:
    again = decode(encode(deque([1, 2], 2)), CPU)
    assert again == deque([1, 2])
    assert again.maxlen == 2


@pytest.mark.parametrize(
    "value", [object(), torch.zeros(MOST + 1), [object()], print], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_put_down_is_refused(value: object) -> None:
    assert not is_plain(value)
    with pytest.raises(TypeError):
        encode(value)


def test_attributes_are_put_back_into_the_containers_that_are_there() -> None:
    owner = SimpleNamespace(count=1, losses=[1.0], best={"a": [1]}, other=object(), total=torch.tensor(1.0))
    attributes = Attributes(owner)
    losses, best, total = owner.losses, owner.best, owner.total
    taken = attributes.take()
    owner.count = 2
    losses.append(2.0)
    best["a"].append(2)
    best["b"] = []
    total += 1
    owner.late = 3
    attributes.put(taken)
    assert (owner.count, owner.losses, owner.best, owner.total.item()) == (1, [1.0], {"a": [1]}, 1.0)
    assert owner.losses is losses
    assert owner.best is best
    assert not hasattr(owner, "late")
    losses.append(9.0)
    attributes.put(taken)
    assert losses == [1.0]  # a snapshot serves more than once


def test_another_process_is_given_what_has_changed_and_was_the_same_at_first() -> None:
    there, here = SimpleNamespace(count=0, clock=1.0, name="a"), SimpleNamespace(count=0, clock=5.0, name="a")
    of_donor, of_newcomer = Attributes(there), Attributes(here)
    there.count, there.clock = 4, 2.0
    changed = of_donor.changed(of_donor.take())
    assert sorted(name for name, _, _ in changed) == ["clock", "count"]
    taken = [name for name, was, _ in changed if of_newcomer.takes(name, was)]
    assert taken == ["count"]  # each process has a clock of its own


class Progress:
    def __init__(self) -> None:
        self.ready = self.completed = 0


class Loop:
    def __init__(self) -> None:
        self.trainer = self
        self.progress = Progress()
        self.inner: Loop | None = None
        self.fetcher: object = None
        self.steps = 0


def test_the_counters_of_loops_within_loops() -> None:
    loop, inner = Loop(), Loop()
    loop.inner = inner
    counters = LoopCounters(loop, (Loop, Progress))
    loop.steps, loop.progress.ready, inner.progress.completed = 1, 2, 3
    loop.fetcher = object()
    taken = counters.take()
    loop.steps = loop.progress.ready = inner.progress.completed = 9
    counters.put(taken)
    assert (loop.steps, loop.progress.ready, inner.progress.completed) == (1, 2, 3)
    assert loop.inner is inner
    assert loop.fetcher is not None
    assert is_plain([list(values) for values in taken])


def test_marks_outlive_their_process_and_begin_anew_with_the_job(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    Marks(path, anew=True)[3] = 7
    assert Marks(path, anew=False)[3] == 7
    assert Marks(path, anew=True)[3] == 0
    assert Marks(None, anew=False)[3] == 0


def test_memory_that_is_another_file_by_now_costs_what_outlives_the_process(tmp_path: Path, caplog) -> None:
    memory = KeptMemory("test", tmp_path)
    memory.close(holds_number=True)
    marks = Marks(memory.path, anew=True)
    marks[3] = 7
    assert marks[3] == 7
    assert "is not known to its successor" in caplog.text
    os.close(int(memory.path.name))


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[object, int]] = []
        self._version = 0

    def log_metrics(self, metrics: object, step: int) -> None:
        self.lines.append((metrics, step))


def test_a_line_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    logger = Logger()
    lines = Lines([logger], Marks(path, anew=True))
    logger.log_metrics("a", 0)
    at_commit = [*lines.counts]
    logger.log_metrics("b", 1)
    lines.counts[:] = at_commit  # a fault
    logger.log_metrics("b", 1)
    logger.log_metrics("c", 2)
    assert logger.lines == [("a", 0), ("b", 1), ("c", 2)]
    other = Logger()  # in a new process of the rank
    lines = Lines([other], Marks(path, anew=False))
    lines.counts[:] = at_commit
    for line in ("b", "c", "d"):
        other.log_metrics(line, 3)
    assert [line for line, _ in other.lines] == ["d"]
    lines.end()
    assert "log_metrics" not in vars(other)


class Callback:
    def __init__(self) -> None:
        self._fs = SimpleNamespace(exists=lambda path: path in ("old", "new"))

    def file_exists(self, filepath: str, _trainer: object) -> bool:
        return bool(self._fs.exists(filepath))

    @staticmethod
    def _link_checkpoint(_trainer: object, _filepath: str, _linkpath: str) -> None:
        """Do nothing."""


def test_the_file_of_a_checkpoint_that_is_written_again_is_no_other_ones() -> None:
    callback = Callback()
    files = Files([callback, object()], Marks(None, anew=True))
    assert callback.file_exists("new", None)
    files.begin("new")
    files.count = 0  # a fault: it is done again
    assert not callback.file_exists("new", None)
    assert callback.file_exists("old", None)  # another process's
    files.begin("new")
    assert callback.file_exists("new", None)
    callback._link_checkpoint(None, "new", "old")
    files.count = 1
    assert not callback.file_exists("old", None)  # a link that is made again
    files.end()
    assert callback.file_exists("old", None)


class Fetcher(Iterator[Any]):
    """A fetcher like Lightning's, of one loader."""

    def __init__(self, loader: object) -> None:
        self.combined_loader = SimpleNamespace(flattened=[loader])
        self.fetched, self.done = 0, False

    def __iter__(self) -> "Fetcher":
        self.iterator = iter(self.combined_loader.flattened[0])
        self.fetched, self.done = 0, False
        return self

    def __next__(self) -> object:
        batch = next(self.iterator)
        self.fetched += 1
        self.done = self.fetched == 6
        return batch


class Drawing(torch.utils.data.Dataset):
    loaded = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        Drawing.loaded += 1
        return torch.rand(()) + index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


def keeping(loader: object) -> Any:
    fetcher: Any = Fetcher(loader)
    kind: Any = Fetcher
    kind = kept(kind)
    fetcher.__class__ = kind
    fetcher.taskd = Handed()
    return fetcher


def test_a_batch_of_a_pass_that_is_begun_anew_brings_its_random_numbers_too() -> None:
    torch.manual_seed(0)
    fetcher = keeping(DataLoader(Drawing(), batch_size=2))
    states = fetcher.taskd.random.capture()
    iter(fetcher)
    first = [next(fetcher), torch.rand(1)]
    fetcher.taskd.random.restore(states)
    iter(fetcher)
    mark, begun = fetcher.taskd_mark(), fetcher.taskd.random.capture()
    for _ in range(2):
        fetcher.taskd_return(mark)
        fetcher.taskd.random.restore(begun)
        again = [next(fetcher), torch.rand(1)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_survivor_is_given_the_batches_of_an_interrupted_step_again() -> None:
    torch.manual_seed(0)
    fetcher = keeping(DataLoader(Drawing(), batch_size=2, shuffle=True))
    iter(fetcher)
    next(fetcher)
    mark, states = fetcher.taskd_mark(), fetcher.taskd.random.capture()
    first = [next(fetcher), torch.rand(1), next(fetcher), torch.rand(1)]
    fetcher.taskd_return(mark)
    fetcher.taskd.random.restore(states)
    assert fetcher.fetched == 1
    again = [next(fetcher), torch.rand(1), next(fetcher), torch.rand(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert fetcher.fetched == 3
    later = fetcher.taskd_mark()
    fourth = next(fetcher)
    fetcher.taskd_return(mark)  # to the commit before
    fetcher.taskd.random.restore(states)
    again = [next(fetcher), torch.rand(1), next(fetcher), torch.rand(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(next(fetcher), fourth)
    assert fetcher.taskd_mark() > later
    assert sorted(fetcher.taskd.kept) == [2, 3, 4]
    fetcher.taskd_mark()
    assert not fetcher.taskd.kept


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("wants_last", [True, False])
def test_a_new_process_goes_on_behind_the_batches_that_were_handed_out(kind: str, wants_last: bool) -> None:
    torch.manual_seed(0)

    def loader() -> DataLoader:
        return (
            DataLoader(Stream(), batch_size=2)
            if kind == "stream"
            else DataLoader(Drawing(), batch_size=2, shuffle=True)
        )

    former = keeping(loader())
    iter(former)
    last = [next(former) for _ in range(3)][-1]
    place, states = former.taskd_place() + former.taskd_beginning(), former.taskd.random.capture()
    rest = [next(former) for _ in range(3)]
    torch.manual_seed(5)
    Drawing.loaded = 0
    joining = keeping(loader())
    given = joining.taskd_go_to(place, wants_last=wants_last)
    assert Drawing.loaded == (2 if kind == "map" and wants_last else 0)
    joining.taskd.random.restore(states)
    assert all(torch.equal(a, b) for a, b in zip(rest, [next(joining) for _ in range(3)], strict=True))
    assert joining.done
    assert joining.taskd_place() == former.taskd_place()
    if wants_last:
        assert torch.equal(torch.floor(given), torch.floor(last))
