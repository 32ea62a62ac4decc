"""Order in which a data loader requests its samples, reproducible from any place on.

Rules:

1. The order of one pass is a function of three things: the pass's seed, the states of the generators that loader and
   sampler hold as it begins, and the sampler's own state (its epoch, or its `state_dict`).
2. While a sampler draws, torch's global generator stands at the pass's seed. Afterwards it stands where it stood
   before. torch's own samplers draw from it when they begin. Others may draw at any time, also from python's and
   numpy's generators.
3. Indices that were handed out before are skipped here: their samples are not loaded.
4. Worker processes seed their generators for each batch from the pass's seed and the batch's number. Batches that they
   loaded before have no influence. The seed travels with the indices (`Numbered`), and `WorkerStart` unpacks it there.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils import fetch

from taskd.adaptors.training.data.pass_numbers import Numbers, PassNumbers
from taskd.adaptors.training.positions.seeds import mix
from taskd.adaptors.training.tree import bytes_of
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, original_of

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
_DRAW_FIRST = (DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class Numbered:
    """Indices that a worker is to load, with the seed of the batch."""

    def __init__(self, index: Any, seed: int) -> None:
        self.index = index
        self.seed = seed


class WorkerStart:
    """`worker_init_fn` of a kept loader: from then on the worker seeds its generators for each batch."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self.own = own

    def __call__(self, worker: int) -> None:
        """Make this worker's fetchers seed the generators, then call the loader's own function."""
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            if original_of(kind.fetch) is None:
                kind.fetch = _seeding(kind.fetch)  # type: ignore[method-assign]
        if self.own is not None:
            self.own(worker)


def _seeding(inner: Callable[[Any, Any], Any]) -> Any:
    def seeded(self: Any, index: Any) -> Steps:
        if not isinstance(index, Numbered):
            return (yield ORIGINAL)
        sow(index.seed)
        return (yield inner, (self, index.index), {})

    return around(inner, seeded)


def sow(seed: int) -> None:
    """Seed python's generator, torch's and, where it is imported, numpy's."""
    random.seed(seed)
    torch.default_generator.manual_seed(mix(seed))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(seed >> 32)


@contextmanager
def apart(seed: int) -> Iterator[None]:
    """Set torch's global generator to `seed` for the body, and restore its state afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


class Generators:
    """States of torch's, python's and numpy's global generators."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy.random")
        self._states = torch.default_generator.get_state(), random.getstate(), numpy and numpy.get_state()

    def put(self) -> None:
        """Restore these states."""
        cpu, python, numpy = self._states
        torch.default_generator.set_state(cpu)
        random.setstate(python)
        if numpy:
            sys.modules["numpy.random"].set_state(numpy)


def batches_of(loader: Any) -> float:
    """Return `len(loader)`, infinity if it has none.

    torch's loader records that its length was requested: only then does it warn of an iterable dataset that gives more
    samples than that. This request leaves no record.
    """
    asked = "_IterableDataset_len_called"
    inner = (loader, getattr(loader, "base_dataloader", None))
    known = [(vars(one), vars(one)[asked]) for one in inner if asked in getattr(one, "__dict__", ())]
    try:
        return len(loader)
    except TypeError:
        return float("inf")
    finally:
        for attributes, before in known:
            attributes[asked] = before


def held_by(loader: Any) -> list[torch.Generator]:
    """Return the generators that a loader and its samplers hold, each once, in a fixed order."""
    found: dict[int, torch.Generator] = {}
    for holder in (loader, loader.batch_sampler, loader.sampler, *_inner(loader.batch_sampler)):
        for name, value in sorted(vars(holder).items() if hasattr(holder, "__dict__") else ()):
            if isinstance(value, torch.Generator) and not name.startswith("__"):
                found.setdefault(id(value), value)
    return list(found.values())


def states_of(generators: list[torch.Generator]) -> list[bytes]:
    """Return the states of generators, in the form that `put` accepts."""
    return [bytes_of(generator.get_state()) for generator in generators]


def put(generators: list[torch.Generator], states: list[bytes]) -> None:
    """Restore the state of each generator."""
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _inner(sampler: Any) -> list[Any]:
    """Return the samplers inside a sampler, from the outermost inwards."""
    found: list[Any] = []
    while (sampler := getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)) is not None:
        if any(sampler is known for known in found):
            break
        found.append(sampler)
    return found


def samplers(loader: Any) -> list[Any]:
    """Return the samplers of a loader, from the outermost inwards."""
    outer = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return [outer, *_inner(outer)]


def is_stateful(sampler: Any) -> bool:
    """Return whether a sampler has a state of its own that is recorded as a pass begins."""
    if isinstance(sampler, DistributedSampler):  # the state of torchdata's is the place where its last pass ended
        return False
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


def counts_nothing(sampler: Any) -> bool:
    """Return whether a sampler is one of torch's, which change no number by themselves."""
    return type(sampler) in (*_DRAW_FIRST, BatchSampler)


def _draws_first_only(sampler: Any) -> bool:
    if type(sampler) is BatchSampler:
        return _draws_first_only(sampler.sampler)
    return type(sampler) in _DRAW_FIRST


class PassOrder:
    """Order of one pass: where it begins, and how many indices are skipped.

    `numbers`: the watch over the samplers' numbers, their values in this pass, and the names of counted ones.
    """

    def __init__(
        self,
        seed: int,
        starts: list[bytes],
        skip: int,
        numbered: bool,
        numbers: tuple[PassNumbers, Numbers, list[str]],
    ) -> None:
        self.seed = seed
        self.starts = starts
        self.skip = skip
        self.numbered = numbered
        self.numbers = numbers

    def over(self, sampler: Any, held: list[torch.Generator]) -> Iterator[Any]:
        """Yield the indices from the first one that is not skipped."""
        watched, of_pass, counted = self.numbers
        with apart(self.seed):
            put(held, self.starts)
            watched.begin(of_pass, counted)
            indices = iter(sampler)
        if not _draws_first_only(sampler):
            indices = _always_apart(indices, self.seed)
        nothing = object()
        with apart(self.seed):  # samplers that draw do so at their first index
            first = next(indices, nothing)
        watched.compare()
        if first is nothing:
            return
        for number, index in enumerate(chain((first,), indices)):
            if number >= self.skip:
                yield Numbered(index, mix((self.seed + (number + 1) * GOLDEN) & MASK)) if self.numbered else index
        watched.compare()


def _always_apart(indices: Iterator[Any], seed: int) -> Iterator[Any]:
    """Yield the indices of an unknown sampler, which has states of its own for the global generators throughout."""
    theirs: Generators | None = None
    while True:
        before = Generators()
        if theirs is None:
            sow(seed)
        else:
            theirs.put()
        try:
            index = next(indices)
        except StopIteration:
            return
        finally:
            theirs = Generators()
            before.put()
        yield index


class Indices(Sampler[Any]):
    """Sampler that a loader's iterator gets in place of the loader's own; its passes begin at the loader's place."""

    def __init__(self, sampler: Any, order: Callable[[], PassOrder], held: Callable[[], list[torch.Generator]]) -> None:
        self._sampler = sampler
        self._order = order
        self._held = held

    def __iter__(self) -> Iterator[Any]:
        return self._go(self._order())

    def _go(self, order: PassOrder) -> Iterator[Any]:
        yield from order.over(self._sampler, self._held())

    def __len__(self) -> int:
        return len(self._sampler)
