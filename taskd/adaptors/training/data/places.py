"""The exact place of a torch data loader, recorded step by step: the pass over the data, and its batches handed out.

Rules:

1. A pass is one `iter(loader)`. Its order and its workers draw from a seed of its own. Making an iterator therefore
   leaves the global generators as they were (see `indices`).
2. After a recovery the next `iter(loader)` resumes the recorded pass behind the batches that were handed out. An
   iterator that was made before resumes there too.
3. A pass is over if, at the commit, it was exhausted or its iterator released, or if the sampler's epoch has changed
   since. Then a new pass begins. A pass whose last batch was handed out, or that stands where the one before was left,
   is over too, except in `state.epochs()`: there the script begins its epoch again, with no batch left, and reaches the
   code behind the loop. The first pass that is left early has no such place: `proof/reading.py` warns of it.
4. An iterable dataset has no indices to skip: its batches are loaded and dropped, and a log line reports that.
"""

import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch.utils.data import IterableDataset

from taskd.adaptors.training import tree
from taskd.adaptors.training.data.batch_samples import BatchSamples, sample_of
from taskd.adaptors.training.data.counts import opened
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.data.fetched_ahead import MOST_AHEAD, FetchedAhead
from taskd.adaptors.training.data.indices import (
    GOLDEN,
    MASK,
    Indices,
    PassOrder,
    WorkerStart,
    apart,
    batches_of,
    counts_nothing,
    held_by,
    is_stateful,
    put,
    samplers,
    states_of,
)
from taskd.adaptors.training.data.loading import END, Meter
from taskd.adaptors.training.data.loop_names import LoopNames
from taskd.adaptors.training.data.pass_numbers import PassNumbers, counts_epochs
from taskd.adaptors.training.data.passes import Pass, warn_of_skipping
from taskd.adaptors.training.data.sampler_epochs import SamplerEpochs
from taskd.adaptors.training.data.variants import become, class_of, variant
from taskd.adaptors.training.positions.seeds import mix
from taskd.runtime.worker.frameless import ORIGINAL, Call, Steps, around, stop

_log = logging.getLogger(__name__)


class LoaderPlace:
    """Exact place of one loader, whose class is changed: its iterators then record their progress.

    Args:
        loader: any `torch.utils.data.DataLoader`.
        name: name of the part.
        meter: records the cost of its batches.
        epochs: epochs of the state.

    Attributes:
        ahead: batches that the script fetches ahead of its steps.
        samples: samples of its batches; None without the self-check.
        is_mended: whether counts of its batches go on after a recovery, or names of its loops are kept.
        names: local variables that are kept of loops over it; None for none.
        recorded_names: their values at the end of the present pass, encoded; empty if not recorded.
    """

    def __init__(self, loader: Any, name: str, meter: Meter, epochs: Epochs) -> None:
        self.name = name
        self.meter = meter
        self.restores = 0
        self.ahead = FetchedAhead()
        self.samples: BatchSamples | None = None
        self.is_mended = False
        self.names: LoopNames | None = None
        self.recorded_names = b""
        self._loader = weakref.ref(loader)
        self._epochs = epochs
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._workers = loader.num_workers > 0
        self._pass = Pass(mix((torch.initial_seed() + sum(name.encode()) * GOLDEN) & MASK))
        self._holder: weakref.ref[Batches] | None = None
        self._resume: Pass | None = None
        self._lent: Pass | None = None  # the place that the newest iterator resumed at, until the next commit
        self._skipped = 0  # batches behind which the present pass resumed, until the script works at a later one
        self._sampler_epochs = SamplerEpochs(name, self._samplers, lambda: self.ahead.due_step() - 1)
        self._numbers = PassNumbers(self._watched)
        self._whole: float = 0  # number of batches in the present pass
        self._worked = False  # True once the script has worked at a batch of this pass
        become(loader, _kept(class_of(loader)))
        for inner in (loader, getattr(loader, "base_dataloader", None)):  # a loader of accelerate wraps one of torch
            if inner is not None:
                become(inner, _ordered(class_of(inner)))
                inner._taskd_place = self
                if self._workers:
                    inner.worker_init_fn = WorkerStart(inner.worker_init_fn)
                    inner._iterator = None

    @property
    def passes(self) -> int:
        """Number of the present pass, from 0; -1 before the first."""
        return self._pass.number

    # Called by the recovery.

    def pack(self) -> bytes:
        """Return the present place, encoded."""
        self._lent = None
        now = self._resume or self.ahead.place_of(self._settled())
        if self.ahead.batches and now is not self._resume:
            now.loop = self._epochs.loop  # the first batch of a pass may be fetched in the epoch before
        if not now.over:
            self._worked = True
            if self._skipped and now.handed > self._skipped:
                warn_of_skipping(self.name, self._skipped, now.handed)
                self._skipped = 0
        elif now is self._pass:
            now.starts, now.numbers = self._states(), self._numbers.present()
        now.is_mended, now.ahead = self.is_mended, self.ahead.batches
        return msgspec.msgpack.encode(now)

    def unpack(self, data: bytes, *, of_job: bool = True) -> None:
        """Resume at a packed place with the next iterator. Raises `msgspec.DecodeError` for data of another form."""
        resume = msgspec.msgpack.decode(data, type=Pass)
        self.is_mended |= resume.is_mended
        if of_job and 0 < resume.ahead <= MOST_AHEAD:
            self.ahead.settle(resume.ahead)
        self._return_to(resume)

    def fetch_again(self) -> bool:
        """Go back to the batch before the newest one at the remembered commit. Return whether that place is known."""
        if (place := self.ahead.remembered) is not None:
            self._return_to(replace(place))
        return place is not None

    @property
    def counted_attributes(self) -> set[tuple[int, str]]:
        """Attributes of samplers that are restored when a pass resumes: the object's id, and the attribute's name."""
        return self._numbers.attributes()

    @property
    def follows_epochs(self) -> bool:
        """True if a recovery corrects epochs that the script counts by itself."""
        return self._pass.loop >= 0 and self._pass.epoch is not None and not counts_epochs(self._pass.counted)

    @property
    def has_length(self) -> bool:
        """True if the number of batches in a pass is known."""
        return not self._iterable and batches_of(self._loader()) < float("inf")

    def pack_names(self) -> bytes:
        """Return the values that loops over it leave behind, if the pass's last batch was handed out; else empty."""
        names, now = self.names, self.ahead.place_of(self._pass)
        if names is None or self._resume is not None or now.over or now.handed < self._whole:
            return b""
        return names.pack()

    # Called by the iterators.

    def open(self, make: Callable[[Any], Any], loader: Any) -> Steps:
        """Return a new iterator. `make` is the loader's own `__iter__`, and is called with the loader."""
        dropped = self._holder is not None and self._holder() is None and not self._pass.over
        if self._lent is not None and dropped:
            self._resume = self._lent  # the dropped iterator was made for an inspection only
        batches = Batches(self, make, loader)
        yield from self.enter(batches, kept=False)
        return batches

    def enter(self, batches: "Batches", *, kept: bool) -> Steps:
        """Begin the pass of an iterator, or resume one. `kept`: the iterator was made before the recovery."""
        resume, self._resume, self._lent = self._resume, None, self._resume
        if resume is None or not (self._goes_on(resume) or (kept and not resume.over)):
            begun = self._next_of(resume or self._settled())
        else:
            begun = replace(resume)
            self._numbers.resume()
            self.ahead.begin_at(begun)
            self._put_samplers(begun)
            if not kept:
                self._epochs.go_on()
            if not kept and begun.is_left:
                yield from self._begin(batches, begun)
                batches.leave()
                self._replay(begun, begun.handed)
                return
        yield from self._begin(batches, begun)
        self._skipped = begun.handed
        if self._iterable and begun.handed:
            _log.warning(
                "%s is iterable: %d batches are loaded and dropped to come to the place of the recovery; those of a "
                "dataset with __getitem__ are skipped without loading",
                self.name,
                begun.handed,
            )
            if not batches.drop(begun.handed) and not kept and begun.loop < 0:
                yield from self._begin(batches, self._next_of(begun))  # the resumed pass had no batch left

    def ended(self) -> None:
        """Report that a pass within the loop over epochs is exhausted."""
        self._epochs.end_loop()

    def order(self) -> PassOrder:
        """Return the order of the pass that an iterator is about to begin."""
        now = self._pass
        skip = 0 if self._iterable else now.handed
        return PassOrder(now.seed, now.starts, skip, self._workers, (self._numbers, now.numbers, now.counted))

    def apart(self) -> Any:
        """Return a context for making an iterator: inside, torch's global generator draws from the pass's seed."""
        return apart(self._pass.seed)

    def held(self) -> list[torch.Generator]:
        """Return the generators that the loader and its samplers hold."""
        loader = self._loader()
        return [] if loader is None else held_by(loader)

    # Inside.

    def _return_to(self, resume: Pass) -> None:
        self._resume, self._lent = resume, None
        self.ahead.begin_at(None)
        self.restores += 1

    def _begin(self, batches: "Batches", begun: Pass) -> Steps:
        self._pass, self._holder, self._worked = begun, weakref.ref(batches), False
        self._whole = self._batches()
        if begun.number > 0:
            self._epochs.begin_again()
        opened.note(begun.handed)
        return batches.enter(begun)

    def _settled(self) -> Pass:
        now = self._pass
        if not now.over and (self._holder is None or self._holder() is None):
            now.over = True
        return now

    def _goes_on(self, resume: Pass) -> bool:
        if resume.over or resume.loop != self._epochs.loop or not self._sampler_epochs.is_in(resume):
            return False
        if resume.is_left or resume.handed >= self._batches():
            return resume.loop >= 0
        return True

    def _batches(self) -> float:
        return batches_of(self._loader()) or 1

    def _next_of(self, last: Pass) -> Pass:
        if last is not self._pass:
            self._replay(last)
        total, worked = self._batches(), self._worked or last.is_left
        used = self.ahead.left_at(last) if last is self._pass else last.handed
        return Pass(
            last.root,
            last.number + 1,
            self._sampler_epochs.of_next(),
            self._epochs.loop,
            over=False,
            left_at=used if used < total and (worked or last is not self._pass) else 0,
            starts=self._states(),
            sampler=[tree.pack(s.state_dict()) if is_stateful(s) else None for s in self._samplers()],
        )

    def _replay(self, last: Pass, batches: int | None = None) -> None:
        """Bring the generators of loader and samplers to behind `batches` batches of a pass; None: behind all."""
        samplers = self._samplers()
        if last.over:
            put(self.held(), last.starts)
            self._numbers.restore(last.numbers, last.counted)
        elif (last.starts or self._watched()) and not self._iterable:
            self._put_samplers(last)
            self._numbers.resume()
            numbers = self._numbers, last.numbers, last.counted
            order = PassOrder(last.seed, last.starts, 0, False, numbers).over(samplers[0], self.held())
            for _ in itertools.islice(order, batches):
                pass

    def _watched(self) -> list[Any]:
        return [one for one in self._samplers() if not is_stateful(one) and not counts_nothing(one)]

    def _states(self) -> list[bytes]:
        return states_of(self.held())

    def _put_samplers(self, begun: Pass) -> None:
        for sampler, state in zip(self._samplers(), begun.sampler, strict=False):
            if state is not None:
                sampler.load_state_dict(tree.unpack(state))

    def _samplers(self) -> list[Any]:
        loader = self._loader()
        return [] if loader is None else samplers(loader)


class Batches:
    """Iterator of a loader that is a part of the state. It takes unknown attributes from torch's own iterator."""

    def __init__(self, place: LoaderPlace, make: Callable[[Any], Any], loader: Any) -> None:
        self._taskd = place
        self._make: Call = make, (loader,), {}
        self._restores = place.restores
        self._inner: Any = None
        self._source: Any = None
        self._ahead: list[Any] = []
        self._begun_at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def _next(self) -> Steps:
        place = self._taskd
        if self._restores != place.restores:
            yield from place.enter(self, kept=True)
        batch = self._ahead.pop() if self._ahead else (yield from self._fetch())
        if batch is END:
            self._pass.over = True
            if place.ahead.records:
                place.ahead.ended(self._pass)
            if place.names is not None and 0 < self._pass.handed == self._begun_at:
                place.names.put_back(place.recorded_names)
            if self._pass.loop >= 0:
                place.ended()
            yield from stop()
        self._pass.handed += 1
        if place.ahead.records:
            place.ahead.handed(self._pass)
        if place.samples is not None:
            place.samples.handed(self._pass.number, self._pass.handed, sample_of(batch))
        return batch

    def _fetch(self) -> Steps:
        return (yield from self._taskd.meter.fetching(partial(next, self._source, END)))

    __next__ = around(Iterator.__next__, _next)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_taskd") or name in ("_inner", "_pass", "_begun_at"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def enter(self, begun: Pass) -> Steps:
        """Go over the batches of this pass."""
        self._restores, self._pass, self._ahead, self._begun_at = self._taskd.restores, begun, [], begun.handed
        self._inner = self._source = None  # ends the workers of the old iterator before the new one starts its own
        self._inner = yield self._make
        self._source = iter(self._inner)

    def leave(self) -> None:
        """Hand out nothing more: the pass stands where the one before was left."""
        self._source = iter(())

    def drop(self, count: int) -> bool:
        """Load and drop `count` batches. Return whether another batch follows."""
        try:
            for _ in range(count):
                next(self._source)
            self._ahead = [next(self._source)]
        except StopIteration:
            return False
        return True


@cache
def _kept(kind: Any) -> type:
    """Return a variant of a loader's class whose iterators record their place."""

    def opened(self: Any) -> Steps:
        steps: Steps = self._taskd_place.open(kind.__iter__, self)
        return steps

    return variant(kind, {"__iter__": around(kind.__iter__, opened)})


@cache
def _ordered(kind: Any) -> type:
    """Return a variant of a loader's class whose iterators begin at the recorded place."""

    def apart(self: Any) -> Steps:
        with self._taskd_place.apart():
            return (yield ORIGINAL)

    def _index_sampler(self: Any) -> Indices:
        place = self._taskd_place
        return Indices(kind._index_sampler.fget(self), place.order, place.held)

    return variant(
        kind, {"_get_iterator": around(kind._get_iterator, apart), "_index_sampler": property(_index_sampler)}
    )
