"""Roots of a walk: the training function's frames, closures and globals, the data of the state, and its parts.

Rules:

1. The frames are those between a commit and the resilient function. Of a library's frame only the object that it
   belongs to (a trainer) is taken.
2. Each call of a function makes its variables anew; it need not make their values anew.
3. Objects of the state are not entered, except for attributes that its parts leave out of their `state_dict()`.
"""

import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from taskd.adaptors.groups.sites import is_between, is_users
from taskd.adaptors.training.data.indices import samplers
from taskd.adaptors.training.parts.kinds import has_state
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.samples import sample, storage_of
from taskd.adaptors.training.proof.tried import states_of
from taskd.adaptors.training.proof.walk import WalkRoot
from taskd.adaptors.training.script.outside import drawn_from, used_outside
from taskd.adaptors.training.sharding.own_state import own_state
from taskd.adaptors.training.sharding.partitions import is_zero

_INNER: Final = ("dataset", "sampler", "batch_sampler", "collate_fn")
_OPTIMIZED: Final = 0x1
"""Flag of a code object: its variables are a function's."""
_REFERENCES: Final = 3
"""References to a frame's copy of its variables if no other code holds it: frame, caller's name, count's argument."""


class Entered:
    """Running training function, and its frames from the commit outwards.

    Args:
        frame: frame of the commit; None before the function is called.
        function: the function, if it is known.

    Attributes:
        function: the function that was given to `resilient`; None if its frame was not found.
        frames: frames of the script, innermost first.
        owners: objects that a library's frames in between belong to.
    """

    def __init__(self, frame: FrameType | None, function: Any = None) -> None:
        self.function: Any = function
        self.frames: list[FrameType] = []
        self.owners: list[Any] = []
        while frame is not None:
            code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
            ours = module.partition(".")[0] == "taskd"
            if is_users(code.co_filename):
                self.frames.append(frame)
            elif ours and code.co_name == "run" and "function" in code.co_freevars:
                self.function = variables_of(frame).get("function")
                return
            elif not ours and not is_between(code.co_filename) and code.co_varnames[:1] == ("self",):
                self.owners.append(variables_of(frame).get("self"))
            frame = frame.f_back
        self.frames = []

    @property
    def line(self) -> str:
        """`file:line` where the outermost frame begins: the training function, or a trainer's committing frame."""
        frame = self.frames[-1] if self.frames else None
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a frame's variables, and leave no copy of them in the frame: it would keep a whole step's tensors."""
    copy = frame.f_locals
    found = dict(copy)
    if type(copy) is dict and frame.f_code.co_flags & _OPTIMIZED and sys.getrefcount(copy) <= _REFERENCES:
        copy.clear()
    return found


def roots_of(entered: Entered, parts: Parts) -> Iterator[WalkRoot]:
    """Yield all roots, in an order that two walks share."""
    around = dict(_around(entered.function))
    yield from (WalkRoot(name, value) for name, value in sorted(around.items(), key=lambda item: item[0]))
    if entered.function is not None:
        yield WalkRoot(getattr(entered.function, "__name__", "train"), entered.function)
    for frame in entered.frames:
        code = frame.f_code
        for name, value in variables_of(frame).items():
            if name not in around:
                yield WalkRoot(name, value, anew=name not in code.co_freevars and bool(code.co_flags & _OPTIMIZED))
    yield from _of_parts(parts)
    for owner in entered.owners:
        yield WalkRoot(type(owner).__name__, owner, of_library=True)


def _around(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outside variables that the function uses; for a module of the script the attribute that it uses."""
    for name, _, then, value in used_outside(function):
        if isinstance(value, ModuleType):
            yield f"{name}.{then}", _of_module(value, then)
        else:
            yield name, value


def _of_parts(parts: Parts) -> Iterator[WalkRoot]:
    for name, part in parts.positions.items():
        if isinstance(part, DataLoader):
            saved = saved_inside(part)
            for inner in _INNER:
                if inner not in saved:
                    yield WalkRoot(f"{name}.{inner}", vars(part).get(inner), of_data=True)
    for name, part in parts.replicated.items():
        library = isinstance(part, LibraryPart | LRScheduler | torch.amp.GradScaler | torch.nn.Module)
        if not library and own_state(part) is None and not is_zero(part):
            yield WalkRoot(name, part, in_part=True)


def saved_inside(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the objects that are saved with the place of a loader, by the loader's attribute."""
    inner = {name: vars(loader).get(name) for name in _INNER if name != "dataset" or has_state(loader)}
    return {name: value for name, value in inner.items() if has_state(value)}


def _of_module(module: ModuleType, name: Any) -> Any:
    """Return the attribute of a script's module with this name; None for modules of libraries."""
    users = is_users(str(getattr(module, "__file__", None) or "<none>"))
    return vars(module).get(name) if users and isinstance(name, str) else None


class Held:
    """Objects that the state has, as it is now.

    Args:
        parts: parts of the state.
        earlier: its objects at an earlier walk. If given, no part is asked for its state: at a fault a script's own
            `state_dict()` may take long, or wait for a peer that is gone.

    Attributes:
        ids: ids of its objects.
        data: ids of its loaders' datasets and samplers.
        follows_epochs: whether a recovery corrects epochs that the script counts by itself.
        of_passes: samplers' attributes that are restored as a pass resumes: the object's id, and the attribute's name.
        storages: addresses of its tensors' memory.
        samples: samples of its tensors, and of those that `state_dict()` makes for it.
        shapes: shapes of the parameters that are trained, and of all others of its models.
    """

    def __init__(self, parts: Parts, earlier: "Held | None" = None) -> None:
        modules = [module for root in parts.modules for module in root.modules()]
        loaders = [one for one in parts.all.values() if isinstance(one, DataLoader)]
        self.ids = frozenset(map(id, [*parts.all.values(), *parts.replicated.values(), *modules]))
        self.ids |= drawn_from({name: one for name, one in parts.all.items() if not isinstance(one, DataLoader)})
        self.ids |= {id(one) for loader in loaders for one in (*_drawn(loader), *saved_inside(loader).values())}
        self.data = frozenset(id(one) for loader in loaders for one in (loader.dataset, *samplers(loader)))
        places = parts.loader_places.values()
        self.follows_epochs = any(place.follows_epochs for place in places)
        self.of_passes = frozenset(one for place in places for one in place.counted_attributes)
        tensors = [*parts.parameters(), *(buffer for module in parts.modules for buffer in module.buffers())]
        self.shapes = frozenset(tuple(one.shape) for one in parts.parameters())
        gradients = [one.grad for one in parts.parameters() if one.grad is not None]
        for _, part, saved in states_of(parts) if earlier is None else _attributes(parts):
            if not isinstance(part, torch.nn.Module):
                tensors.extend(_tensors(saved))
        self.storages = frozenset(map(storage_of, [*tensors, *gradients])) - {0}
        if earlier is not None:
            self.storages |= earlier.storages
        self.samples = frozenset(map(sample, [*tensors, *gradients]))


def _attributes(parts: Parts) -> Iterator[tuple[str, Any, Any]]:
    for name, part in (*parts.replicated.items(), *parts.positions.items()):
        yield name, part, getattr(part, "__dict__", None)


def weights_of(parts: Parts) -> frozenset[bytes]:
    """Return samples of all parameters and buffers of the models, as they are now."""
    return frozenset(sample(one) for module in parts.modules for one in (*module.parameters(), *module.buffers()))


def _drawn(loader: Any) -> Iterator[Any]:
    """Yield the generators that the place of a loader keeps."""
    yield from filter(None, (getattr(one, "generator", None) for one in (loader, *samplers(loader))))


def _tensors(value: Any, depth: int = 8) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner, depth - 1)
