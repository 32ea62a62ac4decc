"""The parts of a training state, sorted by what taskd has to do with them.

Rules:

1. A replicated part is equal on all ranks, and a donor's copy is good for everybody: model, optimizer, scheduler …
2. A position part differs from rank to rank and goes into the rank's position file: samplers and data loaders.
3. A part that cannot be saved and loaded is refused at once, by name.
4. A data loader draws a seed from torch's global generator whenever it is iterated, and the training function
   iterates it anew after each recovery. Making an iterator of a loader that is a part leaves the generator as it was.
5. `meter` counts what those loaders give.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DistributedSampler, Sampler

from taskd.adaptors.groups.wrappers import living, watching
from taskd.adaptors.training import tree
from taskd.adaptors.training.loading import Meter
from taskd.errors import ConfigError, RestoreError


class Parts:
    """The arguments of a `TrainState`, checked and sorted. Arguments that are None are left out."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.all = {name: part for name, part in given.items() if part is not None}
        for name, part in self.all.items():
            _check(name, part)
        self.positions = {name: part for name, part in self.all.items() if _is_position(name, part)}
        self.replicated = {name: part for name, part in self.all.items() if name not in self.positions}
        self.modules = [part for part in self.replicated.values() if isinstance(part, torch.nn.Module)]
        self.optimizers = [part for part in self.replicated.values() if isinstance(part, torch.optim.Optimizer)]
        self.schedulers = [part for part in self.replicated.values() if isinstance(part, LRScheduler)]
        self.meter = Meter()
        for part in self.positions.values():
            if isinstance(part, torch.utils.data.DataLoader):
                _iterate_quietly(part, self.meter)
        if not self.optimizers:
            raise ConfigError(
                f"TrainState got {', '.join(self.all) or 'nothing'}; expected at least one torch.optim.Optimizer, "
                "since a step is seen through its hooks: pass optimizer=…"
            )

    def pack_positions(self) -> dict[str, bytes]:
        """Return the encoded state of each position part."""
        return {
            name: tree.pack(part.epoch if _has_epoch_only(part) else part.state_dict())
            for name, part in self.positions.items()
        }

    def unpack_positions(self, packed: dict[str, bytes]) -> list[str]:
        """Put back what `pack_positions` returned; return the names of the parts that it did not have."""
        for name, data in packed.items():
            part = self.positions.get(name)
            if part is None:
                continue
            value = tree.unpack(data)
            try:
                part.set_epoch(value) if _has_epoch_only(part) else part.load_state_dict(value)
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise RestoreError(f"the data position of {name!r} cannot be put back: {error!r}") from error
        return [name for name in self.positions if name not in packed]

    def wrappers(self) -> list[DistributedDataParallel]:
        """Return every DDP wrapper of the process, or of the modules where nobody watches them being made."""
        if watching():
            return living()
        return [m for root in self.modules for m in root.modules() if isinstance(m, DistributedDataParallel)]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return every parameter of the modules and optimizers (some may come twice)."""
        found = [parameter for module in self.modules for parameter in module.parameters()]
        for optimizer in self.optimizers:
            found.extend(parameter for group in optimizer.param_groups for parameter in group["params"])
        return found


def advances_by_itself(scheduler: LRScheduler) -> bool:
    """Tell whether `scheduler.step()` needs no argument."""
    return not isinstance(scheduler, ReduceLROnPlateau)


def _is_position(name: str, part: Any) -> bool:
    data = isinstance(part, Sampler | torch.utils.data.DataLoader)
    return data or name in ("sampler", "loader") or name.endswith(("_sampler", "_loader"))


def _iterate_quietly(loader: Any, meter: Meter) -> None:
    make = loader._get_iterator

    def make_quietly() -> Any:
        before = torch.default_generator.get_state()
        try:
            iterator = make()
        finally:
            torch.default_generator.set_state(before)
        meter.watch(iterator)
        return iterator

    loader._get_iterator = make_quietly


def _has_epoch_only(part: Any) -> bool:
    return isinstance(part, DistributedSampler) and not hasattr(part, "state_dict")


def _check(name: str, part: Any) -> None:
    if _has_epoch_only(part):
        return
    if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
        return
    remedy = "pass an object that has both"
    if isinstance(part, torch.utils.data.DataLoader):
        remedy = "use torchdata's StatefulDataLoader, or pass the DistributedSampler as sampler=…"
    raise ConfigError(
        f"TrainState argument {name!r} is a {type(part).__name__}, expected something with state_dict() and "
        f"load_state_dict(); {remedy}"
    )
