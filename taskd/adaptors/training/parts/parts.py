"""The parts of a training state, sorted by how taskd treats them.

Rules:

1. A replicated part is equal on all ranks, and any rank can use a donor's copy: model, optimizer, scheduler …
2. A position part differs from rank to rank and goes into the rank's position file: samplers and data loaders.
3. `kinds` decides which of the two a part is.
4. A data loader of torch's, or of a class derived from it, is kept at its exact place (see `places`). A loader with a
   `state_dict` of its own keeps its place itself; making an iterator of it leaves the global generator as it was. A
   pass whose last batch was given is over for torchdata's loaders too, unless the script loops over `state.epochs()`.
5. The samplers of a kept loader are kept with it. For a loader that keeps its place itself, the sampler's epoch is
   recorded beside it: the script may request such a loader's state before its loop has set the epoch.
6. `meter` counts the batches of those loaders.
7. In a torch that does not fit nothing is kept, and model and loaders are not changed: the script trains as without
   taskd.
"""

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.groups.wrappers import living, watching
from taskd.adaptors.seams.parts import IN_WORKER
from taskd.adaptors.training import tree
from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.adaptors.training.data.batch_samples import BatchSamples
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.data.indices import batches_of, samplers
from taskd.adaptors.training.data.loading import Meter
from taskd.adaptors.training.data.loop_names import KeptNames, LoopNames
from taskd.adaptors.training.data.persistent import OF_ITERATORS, PersistentIterators
from taskd.adaptors.training.data.places import LoaderPlace
from taskd.adaptors.training.parts.containers import opened
from taskd.adaptors.training.parts.kinds import Sorted, has_epoch_only, has_state
from taskd.adaptors.training.parts.loose import Loose
from taskd.adaptors.training.parts.plain import Plain
from taskd.adaptors.training.parts.taken_in import TakenIn
from taskd.adaptors.training.positions.late import IN_BACKWARD, OF_BATCH, OF_NAMES
from taskd.adaptors.training.positions.packed import PackedPosition
from taskd.adaptors.training.positions.payload import head_of
from taskd.adaptors.training.positions.position_file import CAPACITY_BYTES
from taskd.errors import ConfigError, RestoreError
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.runtime.worker.pulse import Buffer

_log = logging.getLogger(__name__)
_EPOCH: Final = "\0epoch"
"""Suffix of a loader's name, for the epoch of its sampler."""


class Parts:
    """Parts of a `TrainState`, and its epochs.

    Args:
        given: checked and sorted parts.

    Raises:
        ConfigError: no optimizer is among them, or one whose steps cannot be observed.
    """

    def __init__(self, given: Sorted) -> None:
        self.epochs = Epochs()
        self.iterators = PersistentIterators()
        self.made_at = script_line()
        self._told_too_large = False
        self.all = given.all
        fits = not IN_WORKER.misfit()  # else the optimizers alone are watched, by torch's public hooks
        kept = {name: part for name, part in self.all.items() if fits or isinstance(part, torch.optim.Optimizer)}
        bare = opened({name: _bare(name, part) for name, part in kept.items()})
        self.positions = {name: part for name, part in kept.items() if name in given.positions}
        self.replicated = {name: part for name, part in bare.items() if name not in self.positions}
        self.modules = [part for part in self.replicated.values() if isinstance(part, torch.nn.Module)]
        self.optimizers = [part for part in self.replicated.values() if isinstance(part, torch.optim.Optimizer)]
        self.loose = Loose(self.replicated)
        self.plain = Plain(self.replicated)
        self.taken = TakenIn()
        self.meter = Meter()
        self._mark: bytes | None = None
        self.places: dict[str, LoaderPlace | PackedPosition] = {}
        self.samples: dict[str, BatchSamples] = {}
        self.keeping: dict[str, LoaderPlace] = {}
        self._packed: tuple[dict[str, bytes], bytes] = ({}, b"")
        self._room: tuple[Sequence[Buffer] | None, int] = (None, 0)
        for name, part in [*self.positions.items()]:
            if isinstance(part, torch.utils.data.DataLoader):
                self._keep(name, part)
            elif isinstance(part, PlainPlace):
                part.meter, part.epochs = self.meter, self.epochs
            if isinstance(part, PackedPosition):
                self.places[name] = part
        self._packs = [(name, self._packing(name, part)) for name, part in self.positions.items()]
        self._epochs_of = {
            f"{name}{_EPOCH}": sampler
            for name, part in self.positions.items()
            if isinstance(part, torch.utils.data.DataLoader) and name not in self.places
            for sampler in samplers(part)
            if has_epoch_only(sampler) and not any(sampler is one for one in self.positions.values())
        }
        if not self.optimizers:
            raise ConfigError(
                f"TrainState got {', '.join(self.all) or 'nothing'}; expected at least one torch.optim.Optimizer, "
                "since a step is seen through its hooks: pass optimizer=…"
            )

    def _keep(self, name: str, loader: Any) -> None:
        if has_state(loader):
            _iterate_quietly(loader, self.meter)
            return
        self.places[name] = LoaderPlace(loader, name, self.meter, self.epochs)
        own = samplers(loader)
        for other, part in [*self.positions.items()]:
            if any(part is sampler for sampler in own):
                del self.positions[other]

    def pack_some(self, names: Container[str]) -> dict[str, bytes]:
        """Return the encoded state of the position parts with these names."""
        return {name: pack() for name, pack in self._packs if name in names}

    def pack_positions(self) -> dict[str, bytes]:
        """Return the encoded state of each position part, and of the epochs under the name ""."""
        packed = {name: pack() for name, pack in self._packs}
        for name, sampler in self._epochs_of.items():
            packed[name] = tree.pack(sampler.epoch)
        if self.epochs.used:
            packed[""] = self.epochs.pack()
        return packed

    def _packing(self, name: str, part: Any) -> Callable[[], bytes]:
        place = self.places.get(name)
        if place is not None:
            return place.pack
        if has_epoch_only(part):
            return lambda: tree.pack(part.epoch)
        return lambda: tree.pack(part.state_dict())

    def unpack_positions(self, packed: dict[str, bytes], *, of_job: bool = True) -> list[str]:
        """Restore the result of `pack_positions`. Return the names of the parts that it lacks.

        `of_job`: it was packed in this job, and comes from no checkpoint.
        """
        self.epochs.unpack(packed.get(""))
        # A checkpoint has no counts. The record of a state without position parts has none either.
        self.iterators.unpack(packed.get(OF_ITERATORS, b"" if of_job and packed else None))
        for name, place in self.loader_places.items():
            place.recorded_names = packed.get(OF_NAMES + name, b"")
        for name, data in packed.items():
            if name in self._epochs_of:
                self._epochs_of[name].set_epoch(tree.unpack(data))
            part = self.positions.get(name)
            if part is None:
                continue
            try:
                self._unpack(name, part, data, begins_anew="" not in packed, of_job=of_job)
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise RestoreError(f"the data position of {name!r} cannot be put back: {error!r}") from error
        return [name for name in self.positions if name not in packed]

    def _unpack(self, name: str, part: Any, data: bytes, *, begins_anew: bool, of_job: bool) -> None:
        place = self.places.get(name)
        if isinstance(place, LoaderPlace):
            place.unpack(data, of_job=of_job)
            return
        if place is not None:
            place.unpack(data)
            return
        value = tree.unpack(data)
        if begins_anew and isinstance(part, torch.utils.data.DataLoader) and _handed(value) >= batches_of(part):
            value["_iterator_finished"] = True
        part.set_epoch(value) if has_epoch_only(part) else part.load_state_dict(value)

    def wrappers(self) -> list[DistributedDataParallel]:
        """Return every DDP wrapper of the process, or only those of the modules if wrappers are not watched."""
        if watching():
            return living()
        return [m for root in self.modules for m in root.modules() if isinstance(m, DistributedDataParallel)]

    def data_position(self, rng: Sequence[Buffer]) -> bytes:
        """Encode the positions; return b"" if there are none, or if they have no room beside these random numbers."""
        if not self.has_place:
            return b""
        packed = self.pack_positions()
        if counts := self.iterators.pack():
            packed[OF_ITERATORS] = counts
        if self._mark is not None:
            packed[IN_BACKWARD] = self._mark
        beside = {OF_NAMES + name: names for name, place in self.keeping.items() if (names := place.pack_names())}
        beside |= {OF_BATCH + name: samples.newest for name, samples in self.samples.items()}
        packed |= beside
        if packed != self._packed[0]:
            self._packed = packed, msgspec.msgpack.encode(packed)
        data = self._packed[1]
        if rng is not self._room[0]:
            self._room = rng, CAPACITY_BYTES - len(head_of(rng)) - sum(map(len, rng))
        room = self._room[1]
        if len(data) > room and beside:  # the position itself matters more
            data = msgspec.msgpack.encode({name: value for name, value in packed.items() if name not in beside})
        if len(data) <= room:
            return data
        if not self._told_too_large:
            self._told_too_large = True
            _log.warning(
                "the data position (%s) takes %d bytes, and %d have room: it is not recorded, and after a recovery the "
                "data of a replaced rank is not exactly that of an undisturbed run",
                ", ".join(self.positions),
                len(data),
                room,
            )
        return b""

    @contextmanager
    def marked(self, mark: bytes) -> Iterator[None]:
        """Add this mark to positions that are encoded in the body: they belong to a backward pass."""
        self._mark = mark
        try:
            yield
        finally:
            self._mark = None

    def count_steps(self, due_step: Callable[[], int]) -> None:
        """Give loaders the number of the step under way."""
        for place in self.loader_places.values():
            place.ahead.due_step = due_step

    def sample_batches(self, world_size: int) -> None:
        """Record a sample of each loader's newest batch with its position, from now on."""
        for name, place in self.places.items():
            if isinstance(place, LoaderPlace | PlainPlace):
                place.samples = self.samples[name] = self.samples.get(name) or BatchSamples()
                place.samples.world_size = world_size

    def keep_names(self, loops: Sequence[KeptNames], tell: Callable[[str], None]) -> None:
        """Record these local variables when a pass of their loader ends. `tell` reports one that cannot be kept."""
        for name in {loop.loader for loop in loops}:
            place = self.places[name]
            assert isinstance(place, LoaderPlace)
            place.names = place.names or LoopNames(tell)
            place.names.keep(loop for loop in loops if loop.loader == name)
            self.keeping[name] = place

    @property
    def knows_place(self) -> bool:
        """True if the number of batches that the script has fetched ahead of its steps is known."""
        return not any(place.ahead.is_unknown for place in self.loader_places.values())

    @property
    def loader_places(self) -> dict[str, LoaderPlace]:
        """Places of torch's data loaders, by name."""
        return {name: place for name, place in self.places.items() if isinstance(place, LoaderPlace)}

    @property
    def has_place(self) -> bool:
        """True if a position holds more than random numbers."""
        return bool(self.positions) or self.epochs.used or self._mark is not None

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return every parameter of the modules and optimizers (some may come twice)."""
        return [*(parameter for module in self.modules for parameter in module.parameters()), *self.trained()]

    def trained(self) -> list[torch.nn.Parameter]:
        """Return every parameter of the optimizers."""
        return [one for optimizer in self.optimizers for group in optimizer.param_groups for one in group["params"]]


def _iterate_quietly(loader: Any, meter: Meter) -> None:
    def quietly() -> Steps:
        before = torch.default_generator.get_state()
        try:
            iterator = yield ORIGINAL
        finally:
            torch.default_generator.set_state(before)
        meter.watch(iterator)
        return iterator

    loader._get_iterator = around(loader._get_iterator, quietly)


def _handed(state: Any) -> float:
    """Return how many batches a loader of torchdata's had given in its pass, by its state; -1 if that is unknown."""
    if not isinstance(state, dict) or "_iterator_finished" not in state:
        return -1
    snapshot = state.get("_snapshot") or {}
    return float(state.get("_num_yielded", snapshot.get("_snapshot_step", -1) + state.get("_steps_since_snapshot", 0)))


def _bare(name: str, part: Any) -> Any:
    """Return the optimizer or scheduler inside one of accelerate's, which has no hooks of its own."""
    if type(part).__name__ == "AcceleratedScheduler":
        return part.scheduler
    if not isinstance(part, torch.optim.Optimizer) or hasattr(part, "_optimizer_step_pre_hooks"):
        return part
    inner = getattr(part, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer):
        raise ConfigError(
            f"TrainState argument {name!r} is a {type(part).__name__} without an optimizer's hooks, expected one that "
            "has them; pass the torch optimizer that it wraps"
        )
    return _bare(name, inner)
