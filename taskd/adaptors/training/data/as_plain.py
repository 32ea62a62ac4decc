"""The place of a data loader whose order and random numbers stay exactly those that it has without taskd.

Trainers use it, because their runs are compared with runs without taskd. A `LoaderPlace` draws from seeds of its own
instead.

Rules:

1. An undisturbed pass is torch's own: nothing is seeded. As a pass begins, the states of these are recorded: the global
   generators, the generators that loader and samplers hold, and stateful samplers. The states of the global generators
   are also recorded before each batch that is loaded in this process.
2. A process that survives goes on with its iterator. The workers, and the batches they had loaded ahead, are unchanged.
   Batches that were handed out since the last commit are handed out again.
3. A new process makes the iterator again from the record. It skips the batches that were handed out, without loading
   them. Batches that its predecessor had loaded ahead are loaded with the random numbers of that time. Afterwards the
   global generators stand where they stood at the call of `iter`.
4. Not exact in a new process: a dataset that draws random numbers in worker processes, or is iterable and draws any; a
   sampler that draws from the global generators later than with its first index.
5. `committed` is called after each commit: every batch that was handed out by then has been trained with.
"""

import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import msgspec
from torch.utils.data import IterableDataset, Sampler

from taskd.adaptors.training import tree
from taskd.adaptors.training.data.batch_samples import BatchSamples
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.data.indices import batches_of, held_by, is_stateful, put, samplers, states_of
from taskd.adaptors.training.data.loading import Meter
from taskd.adaptors.training.data.plain_batches import PassMemory, PlainBatches
from taskd.adaptors.training.data.variants import become, class_of, variant
from taskd.adaptors.training.positions.packed import PackedPosition
from taskd.adaptors.training.positions.rng import PackedRng
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

_log = logging.getLogger(__name__)
_MARKS: Final = ("epoch", "iteration")
"""Counters by which samplers, and loaders of accelerate's, distinguish their passes."""
_BESIDE: Final = ("end_of_dataloader", "remainder")
"""Attributes that loaders of accelerate's set for each batch."""


class PlainPass(msgspec.Struct, array_like=True):
    """One pass over the data.

    Attributes:
        number: number of the pass, from 0; -1 before the first.
        handed: number of batches that were handed out.
        over: whether all batches were handed out.
        loop: epoch of `state.epochs()`, -1 outside of it.
        globals: states of the global generators when the iterator was requested.
        held: states of the generators that loader and samplers hold, at that time; once the pass is over, the present
            ones.
        marks: counters of loader and samplers (`_MARKS`), at the same time as `held`.
        states: states of stateful samplers, encoded, at the same time as `held`.
        asked: states of the held generators when the sampler's first index was requested. Ranks may have agreed on
            other states since `held`.
        ahead: states of the global generators before each loaded batch that has not been trained with.
    """

    number: int = -1
    handed: int = 0
    over: bool = True
    loop: int = -1
    globals: bytes = b""
    held: list[bytes] = msgspec.field(default_factory=list)
    marks: list[int | None] = msgspec.field(default_factory=list)
    states: list[bytes | None] = msgspec.field(default_factory=list)
    asked: list[bytes] = msgspec.field(default_factory=list)
    ahead: list[bytes] = msgspec.field(default_factory=list)


class PlainPlace(PackedPosition):
    """Place of one loader; a part of a training state that is each rank's own (`data=`).

    Args:
        loader: any `torch.utils.data.DataLoader`, or one of accelerate's.

    Attributes:
        meter: records the cost of its batches.
        epochs: epochs of the state, if the script loops over them. A pass that is over does not begin again in its
            epoch.
        pass_: the present pass.
        memory: memory of the present pass.
        samples: samples of its batches; None in a job without the self-check.
    """

    def __init__(self, loader: Any) -> None:
        self.meter = Meter()
        self.epochs = Epochs()
        self.samples: BatchSamples | None = None
        self.pass_ = PlainPass()
        self._loader = weakref.ref(loader)
        self._rng = PackedRng()
        self.memory: PassMemory | None = None
        self._packed: tuple[tuple[PassMemory, int, int] | None, bytes] = (None, b"")  # key and result of the last pack
        self._resume: PlainPass | None = None
        self._live: weakref.ref[PlainBatches] | None = None
        self._kept: PlainBatches | None = None  # held until the next iterator is requested
        inner = getattr(loader, "base_dataloader", loader)  # a loader of accelerate wraps one of torch
        self._in_process = not inner.num_workers
        self._iterable = isinstance(inner.dataset, IterableDataset)
        become(loader, _telling(class_of(loader)))
        become(inner, _asking(class_of(inner)))
        for one in (loader, inner):
            vars(one)["_taskd_place"] = self

    @property
    def loader(self) -> Any:
        """The loader; None once nobody holds it any more."""
        return self._loader()

    # Called by the state.

    def pack(self) -> bytes:
        """Return the present place, encoded."""
        if self._resume is not None:
            return msgspec.msgpack.encode(self._resume)
        now, memory = self.pass_, self.memory
        if now.over or memory is None or now.handed >= memory.total:
            return msgspec.msgpack.encode(PlainPass(now.number, now.handed, True, now.loop, b"", *self._own()))
        at = memory, now.handed, memory.changes
        if at != self._packed[0]:
            if self.batches is not None:
                now = msgspec.structs.replace(now, asked=memory.asked, ahead=memory.before_each(now.handed))
            self._packed = at, msgspec.msgpack.encode(now)
        return self._packed[1]

    def unpack(self, data: bytes) -> None:
        """Resume at a packed place with the next iterator. Raises `msgspec.DecodeError` for data of another form."""
        self._resume = resume = msgspec.msgpack.decode(data, type=PlainPass)
        batches = self.batches
        covers = batches is not None and batches.goes_back_to(resume.handed)
        same = resume.number == self.pass_.number
        if same and resume.over and resume.loop < 0 and (batches is None or not batches.broken):
            self._resume = None  # no pass has begun since
        elif not (same and covers):
            self._drop()

    # Called by the trainer's adapter.

    def committed(self) -> None:
        """Forget the batches that the committed steps were trained with: they are not handed out again."""
        batches = self.batches
        if batches is not None:
            batches.forget_before(self.pass_.handed)

    @property
    def goes_on(self) -> bool:
        """True if the place went back within its pass and the iterator goes on."""
        resume = self._resume
        return resume is not None and not resume.over and self._kept is not None

    @property
    def batches(self) -> "PlainBatches | None":
        """The present iterator; None if there is none."""
        if self._kept is not None:
            return self._kept
        return None if self._live is None else self._live()

    # Called by the iterators.

    def open(self) -> Steps:
        """Return the iterator of the next or resumed pass. A new one wraps that of the loader's own `__iter__`."""
        resume, self._resume = self._resume, None
        kept = self._kept
        if resume is not None and resume.over and resume.loop == self.epochs.loop >= 0:
            batches = self._end_again(resume)
        elif resume is None or resume.over:
            if resume is not None:
                self._put(resume)
            self._drop()
            number = (self.pass_ if resume is None else resume).number + 1
            self.pass_ = PlainPass(number, 0, False, self.epochs.loop, self._rng.capture(), *self._own())
            batches = PlainBatches(self, self._remember(0, []))
            self._hold(batches)
            batches.begin((yield ORIGINAL))
        elif kept is not None and kept.goes_back_to(resume.handed):
            self.pass_ = msgspec.structs.replace(self.pass_, handed=resume.handed)
            batches = kept.rewind(resume.handed)
            self._hold(batches)
        else:
            batches = yield from self._replay(resume)
        return batches

    def keep(self, batches: "PlainBatches") -> None:
        """Hold this iterator from its first batch until the next one is made, even if its user releases it."""
        self._kept = batches

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Disable the loader's synchronization of generators: an iterator made anew on one rank has no peer for it."""
        loader = self._attributes()
        known = loader.get("rng_types")
        if known is not None:
            loader["rng_types"] = None
        try:
            yield
        finally:
            if known is not None:
                loader["rng_types"] = known

    @property
    def beside(self) -> tuple[Any, ...]:
        """Attributes that the loader has set for its newest batch (`_BESIDE`)."""
        loader = self._attributes()
        return tuple(loader.get(name) for name in _BESIDE)

    def put_beside(self, told: tuple[Any, ...]) -> None:
        """Set these attributes again for a batch that is handed out again."""
        loader = self._attributes()
        loader.update((name, value) for name, value in zip(_BESIDE, told, strict=True) if name in loader)

    # Inside.

    def _replay(self, resume: PlainPass) -> Steps:
        self._drop()
        now = self._rng.capture()
        self._put(resume)
        self._rng.restore(resume.globals)
        self.pass_ = resume = msgspec.structs.replace(resume)
        ahead, resume.ahead = resume.ahead, []
        batches = PlainBatches(self, self._remember(resume.handed, ahead, resume.asked))
        self._hold(batches)
        batches.begin((yield ORIGINAL))
        if self._iterable and resume.handed:
            _log.warning(
                "a data loader is iterable: %d batches are loaded and dropped to come to the place of the recovery; "
                "those of a dataset with __getitem__ are skipped without loading",
                resume.handed,
            )
            batches.drop(now)
        else:
            batches.memory.made_anew(now)
        return batches

    def _end_again(self, resume: PlainPass) -> "PlainBatches":
        """Return an exhausted iterator: the code behind the loop over the batches runs again, with no batch left."""
        self._drop()
        self._put(resume)
        self.pass_ = resume
        loader: Any = self._loader()
        if "iteration" in vars(loader):
            loader.iteration += 1  # accelerate's loaders do so behind the last batch
        batches = PlainBatches(self, self._remember(resume.handed, []))
        self._hold(batches)
        batches.begin(iter(()))
        return batches

    def _attributes(self) -> dict[str, Any]:
        loader = self._loader()
        return {} if loader is None else vars(loader)

    def _remember(self, skip: int, ahead: list[bytes], asked: Sequence[bytes] = ()) -> PassMemory:
        known = self._loader
        held = lambda: [] if (loader := known()) is None else held_by(loader)  # noqa: E731 - must not hold this place
        self.memory = PassMemory(
            self._rng, held, skip, ahead, list(asked), in_process=self._in_process, iterable=self._iterable
        )
        self.memory.total = self._total()
        return self.memory

    def _hold(self, batches: "PlainBatches") -> None:
        self._live = weakref.ref(batches)
        self._kept = None

    def _drop(self) -> None:
        self._kept = self._live = None

    def _total(self) -> float:
        return batches_of(self._loader())

    def _things(self) -> list[Any]:
        loader = self._loader()
        return [] if loader is None else [loader, *samplers(loader)]

    def _own(self) -> tuple[list[bytes], list[int | None], list[bytes | None]]:
        things = self._things()
        marks = [vars(thing).get(name) for thing in things for name in _MARKS if hasattr(thing, "__dict__")]
        return (
            states_of(held_by(things[0]) if things else []),
            [mark if type(mark) is int else None for mark in marks],
            [tree.pack(thing.state_dict()) if is_stateful(thing) else None for thing in things[1:]],
        )

    def _put(self, resume: PlainPass) -> None:
        things = self._things()
        put(held_by(things[0]) if things else [], resume.held)
        places = [(thing, name) for thing in things for name in _MARKS if hasattr(thing, "__dict__")]
        for (thing, name), mark in zip(places, resume.marks, strict=False):
            if mark is not None:
                setattr(thing, name, mark)
        for sampler, state in zip(things[1:], resume.states, strict=False):
            if state is not None:
                sampler.load_state_dict(tree.unpack(state))


class PlainIndices(Sampler[Any]):
    """Sampler that a loader's iterator gets in place of the loader's own."""

    def __init__(self, sampler: Any, place: PlainPlace) -> None:
        self._sampler = sampler
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        memory = self._place.memory
        return iter(self._sampler) if memory is None else memory.indices(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


@cache
def _telling(kind: Any) -> type:
    """Return a variant of a loader's class whose iterators record their place."""

    def opened(self: Any) -> Steps:
        steps: Steps = self._taskd_place.open()
        return steps

    return variant(kind, {"__iter__": around(kind.__iter__, opened)})


@cache
def _asking(kind: Any) -> type:
    """Return a variant of a loader's class whose iterators take their indices from the place."""

    def _index_sampler(self: Any) -> PlainIndices:
        return PlainIndices(kind._index_sampler.fget(self), self._taskd_place)

    return variant(kind, {"_index_sampler": property(_index_sampler)})
