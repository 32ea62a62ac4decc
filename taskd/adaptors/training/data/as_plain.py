"""The place of a data loader whose order and random numbers are to be exactly those that it has without taskd.

For trainers, which are compared with what they do without: a `LoaderPlace` draws from seeds of its own instead.

Rules:

1. An undisturbed pass is torch's own: nothing is seeded. What is put down as it begins are the states of the global
   generators, of those that loader and samplers hold, and of stateful samplers; and before each batch that is loaded in
   this process, those of the global generators.
2. A process that lives on goes on with the iterator that it has: what that had loaded ahead, and its workers, are as
   they were. Batches that were handed out since the last commit are handed out again.
3. A new process makes the iterator again from what was put down, and skips what was handed out without loading it. What
   the one before it had loaded ahead is loaded with the random numbers of then. The global generators are then where
   they were as the iterator was asked for.
4. Not exact in a new process: a dataset that draws random numbers in worker processes, or is iterable and draws any; a
   sampler that draws from the global generators later than with its first index.
5. `committed` is called after each commit: whatever was handed out by then has been trained with.
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
"""Numbers by which samplers, and loaders of accelerate's, tell their passes apart."""
_BESIDE: Final = ("end_of_dataloader", "remainder")
"""What those loaders tell of a batch."""


class PlainPass(msgspec.Struct, array_like=True):
    """One pass over the data.

    Attributes:
        number: which pass, from 0; -1: none has begun.
        handed: batches that were handed out.
        over: whether all were.
        loop: the epoch of `state.epochs()`, -1 outside of it.
        globals: the states of the global generators as its iterator was asked for.
        held: those of the generators that loader and samplers hold, then; once it is over, those now.
        asked: those as the sampler was asked: ranks may have agreed on them in between.
        marks: the numbers of loader and samplers, likewise.
        states: of stateful samplers, encoded, likewise.
        ahead: the states of the global generators before each batch was loaded that has not been trained with.
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
    """Keeps the place of one loader; a part of a training state that is each rank's own (`data=`).

    Args:
        loader: any `torch.utils.data.DataLoader`, or one of accelerate's.

    Attributes:
        meter: is told what its batches cost.
        epochs: those of the state, if the script loops over them: a pass that is over is not begun again in its epoch.
        pass_: the present one.
        memory: of the present pass.
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
        self._packed: tuple[tuple[PassMemory, int, int] | None, bytes] = (None, b"")  # of where it stood then
        self._resume: PlainPass | None = None
        self._live: weakref.ref[PlainBatches] | None = None
        self._kept: PlainBatches | None = None  # held until the next iterator is asked for
        inner = getattr(loader, "base_dataloader", loader)  # accelerate's are made around one of torch's
        self._in_process = not inner.num_workers
        self._iterable = isinstance(inner.dataset, IterableDataset)
        become(loader, _telling(class_of(loader)))
        become(inner, _asking(class_of(inner)))
        for one in (loader, inner):
            vars(one)["_taskd_place"] = self

    @property
    def loader(self) -> Any:
        """The loader; None if nobody has it any more."""
        return self._loader()

    # What the state calls.

    def pack(self) -> bytes:
        """Where it stands now."""
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
        """Go back to that with the next iterator. Raises `msgspec.DecodeError` for what is no place."""
        self._resume = resume = msgspec.msgpack.decode(data, type=PlainPass)
        batches = self.batches
        covers = batches is not None and batches.goes_back_to(resume.handed)
        same = resume.number == self.pass_.number
        if same and resume.over and resume.loop < 0 and (batches is None or not batches.broken):
            self._resume = None  # nothing was begun since
        elif not (same and covers):
            self._drop()

    # What the trainer's adapter calls.

    def committed(self) -> None:
        """A step is committed: batches that it was trained with are not handed out again."""
        batches = self.batches
        if batches is not None:
            batches.forget_before(self.pass_.handed)

    @property
    def goes_on(self) -> bool:
        """Whether it was gone back within its pass, and its iterator goes on."""
        resume = self._resume
        return resume is not None and not resume.over and self._kept is not None

    @property
    def batches(self) -> "PlainBatches | None":
        """The present iterator."""
        if self._kept is not None:
            return self._kept
        return None if self._live is None else self._live()

    # What the iterators call.

    def open(self) -> Steps:
        """Return a new iterator, around one that the loader's own `__iter__` makes."""
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
        """The iterator is asked for the first time: it lives until there is another, whoever lets go of it."""
        self._kept = batches

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """An iterator that is made anew on one rank alone has nothing to agree on with the others."""
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
        """What the loader tells of the batch that it has just given."""
        loader = self._attributes()
        return tuple(loader.get(name) for name in _BESIDE)

    def put_beside(self, told: tuple[Any, ...]) -> None:
        """A batch is handed out again."""
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
        """What follows the loop over the batches is done again: there are none left."""
        self._drop()
        self._put(resume)
        self.pass_ = resume
        loader: Any = self._loader()
        if "iteration" in vars(loader):
            loader.iteration += 1  # as accelerate's do behind the last batch
        batches = PlainBatches(self, self._remember(resume.handed, []))
        self._hold(batches)
        batches.begin(iter(()))
        return batches

    def _attributes(self) -> dict[str, Any]:
        loader = self._loader()
        return {} if loader is None else vars(loader)

    def _remember(self, skip: int, ahead: list[bytes], asked: Sequence[bytes] = ()) -> PassMemory:
        known = self._loader
        held = lambda: [] if (loader := known()) is None else held_by(loader)  # noqa: E731 - it must not hold this place
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
    """Stands where a loader's iterator expects its sampler."""

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
    """A loader's class, with iterators that tell where they are."""

    def opened(self: Any) -> Steps:
        steps: Steps = self._taskd_place.open()
        return steps

    return variant(kind, {"__iter__": around(kind.__iter__, opened)})


@cache
def _asking(kind: Any) -> type:
    """A loader's class, whose iterators ask for the indices that they are to load."""

    def _index_sampler(self: Any) -> PlainIndices:
        return PlainIndices(kind._index_sampler.fget(self), self._taskd_place)

    return variant(kind, {"_index_sampler": property(_index_sampler)})
