"""A loader with persistent workers draws its iterator's number once for a rank, not for each of its processes."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from taskd.adaptors.training.data.persistent import PersistentIterators
from taskd.adaptors.training.state import TrainState

Loader = DataLoader[int]


def loader_of(rows: int = 2) -> Loader:
    return DataLoader(range(rows), num_workers=1, persistent_workers=True)  # type: ignore[arg-type]


def evaluate(loader: Loader) -> bool:
    """Return whether an evaluation draws a number from torch's generator."""
    before = torch.get_rng_state()
    for _ in loader:
        pass
    return not torch.equal(before, torch.get_rng_state())


@pytest.fixture
def process() -> Iterator[Callable[[], PersistentIterators]]:
    """Yield a function that starts another process of the rank, inside its training function."""
    made: list[PersistentIterators] = []

    def begin() -> PersistentIterators:
        for one in made:
            one.stop()
        made.append(PersistentIterators())
        made[-1].watch(passes=True)
        made[-1].enter()
        return made[-1]

    yield begin
    for one in made:
        one.stop()


def test_a_new_process_draws_no_second_number(process: Callable[[], PersistentIterators]) -> None:
    before, loader, other = process(), loader_of(), loader_of()
    assert [evaluate(loader), evaluate(loader)] == [True, False]
    recorded = before.pack()
    assert evaluate(other), "a second loader at the same line"
    assert before.pack() is not recorded

    after, loader, other = process(), loader_of(), loader_of()
    after.unpack(recorded)
    assert [evaluate(one) for one in (loader, other)] == [False, True], "the second was begun later"
    assert not evaluate(loader)


def test_a_position_without_counts_changes_nothing(process: Callable[[], PersistentIterators]) -> None:
    known, loader = process(), loader_of()
    assert evaluate(loader)
    kept, recorded = loader._iterator, known.pack()
    known.unpack(None)
    assert loader._iterator is kept
    assert known.pack() == recorded


def test_a_position_of_the_job_has_counted_none_if_it_has_no_counts(process: Callable[[], PersistentIterators]) -> None:
    """A checkpoint's position counts none, and neither does the position of a state without positions."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    state = TrainState(optimizer=torch.optim.SGD([parameter]), loader=DataLoader(range(2)))  # type: ignore[arg-type]
    parts, loader = state._recovery.parts, loader_of()
    parts.iterators = process()
    recorded = msgspec.msgpack.decode(parts.data_position(()))
    assert recorded.keys() == {"loader"}
    assert evaluate(loader)
    parts.unpack_positions(recorded, of_job=False)
    parts.unpack_positions({})
    assert not evaluate(loader)
    parts.unpack_positions(recorded)
    assert evaluate(loader)


def test_a_survivor_that_goes_back_begins_it_again(process: Callable[[], PersistentIterators]) -> None:
    known, loader = process(), loader_of()
    recorded = known.pack()
    assert evaluate(loader)
    known.leave()
    known.unpack(recorded)
    known.enter()
    assert [evaluate(loader), evaluate(loader)] == [True, False]


def test_a_loader_that_the_function_makes_is_made_again(process: Callable[[], PersistentIterators]) -> None:
    """Survivors enter the function again, too."""
    known = process()

    def train(evaluations: int) -> list[bool]:
        loader = loader_of()
        found = [evaluate(loader) for _ in range(evaluations)]
        recorded.append(known.pack())
        known.leave()  # a fault leaves the function
        return found

    recorded: list[bytes] = []
    assert train(2) == [True, False]
    known.unpack(recorded[0])
    known.enter()
    assert train(1) == [False]


def test_a_loader_that_is_made_for_each_evaluation_draws_each_time(process: Callable[[], PersistentIterators]) -> None:
    """This holds although one loader still lives when the position is recorded."""
    known, loaders = process(), [loader_of(), loader_of()]
    while len(loaders) > 1:
        assert evaluate(loaders.pop())
    assert evaluate(loaders[0])
    recorded = known.pack()
    after = process()
    after.unpack(recorded)
    assert evaluate(loader_of())


def begin_pass(batches: object = None) -> tuple[Iterator[int], bool]:
    """Return a new iterator, and whether torch's generator has drawn a number for it."""
    before = torch.get_rng_state()
    begun = iter(DataLoader(range(4), batch_sampler=batches))  # type: ignore[arg-type]
    return begun, not torch.equal(before, torch.get_rng_state())


class Batches:
    """Batch sampler whose length costs much, draws a number, or is not known: so its length is read once a pass."""

    def __init__(self, *, known: bool) -> None:
        self.known, self.reads = known, 0

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        self.reads += 1
        if not self.known:
            raise RuntimeError("no epoch was set")
        return 2


def test_a_pass_that_goes_on_draws_no_second_number(process: Callable[[], PersistentIterators]) -> None:
    """Its commit was in the middle of it. The next pass draws, and so does one that the commit had behind it."""
    before, (begun, _) = process(), begin_pass()
    next(begun)
    in_it = before.pack()
    assert before.pack() is in_it
    for _ in begun:
        pass
    behind_it = before.pack()
    assert (bool(in_it), behind_it) == (True, b"")

    after = process()
    after.unpack(in_it)
    resumed, *draws = begin_pass()
    draws.append(begin_pass()[1])
    assert draws == [False, True]
    next(resumed)
    after.unpack(in_it)
    assert after.pack() == b"", "a survivor's pass has ended with the function"
    assert not begin_pass()[1], "and is begun again"
    after.unpack(behind_it)
    assert begin_pass()[1]


@pytest.mark.parametrize("known", [True, False])
def test_the_length_of_a_pass_is_read_once_and_may_raise(
    process: Callable[[], PersistentIterators], *, known: bool
) -> None:
    watched, batches = process(), Batches(known=known)
    begun, _ = begin_pass(batches)
    next(begun)
    in_it = watched.pack()
    assert watched.pack() is in_it
    assert (bool(in_it), batches.reads) == (True, 1)


def test_a_trainers_passes_are_its_adapters(process: Callable[[], PersistentIterators]) -> None:
    process().stop()
    alone = PersistentIterators()
    alone.watch(passes=False)
    try:
        begun, _ = begin_pass()
        next(begun)
        assert alone.pack() == b""
    finally:
        alone.stop()


def test_the_position_has_the_counts_and_torch_is_left_as_it_was(process: Callable[[], PersistentIterators]) -> None:
    own = _BaseDataLoaderIter.__init__
    parameter = torch.nn.Parameter(torch.zeros(1))
    state = TrainState(optimizer=torch.optim.SGD([parameter]), loader=DataLoader(range(2)))  # type: ignore[arg-type]
    iterators = state._recovery.parts.iterators
    iterators.watch(passes=True)
    assert evaluate(loader_of())
    assert _BaseDataLoaderIter.__init__ is not own
    iterators.stop()
    assert _BaseDataLoaderIter.__init__ is own
    recorded = state._recovery.parts.data_position(())
    assert iterators.pack() in recorded
    assert __file__.encode() in recorded
