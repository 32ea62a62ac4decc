"""Walk over everything that a training function reaches: tensors, numbers and generators, each by its path.

Rules:

1. No code of the script is called. Objects are read through their `__dict__`, containers by the methods of the built-in
   types, tensors by a few of their numbers. Nothing is changed, and only marks and weak references are kept.
2. Each object is visited once, in an order that two walks share: an object that stays in its place has the same path.
3. A walk ends after a number of objects, or after a time. Objects that it has not reached by then are left out of both
   walks.
4. Of libraries' objects, models, optimizers and tensors are read, and objects of the script that they hold.
"""

import dataclasses
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from taskd.adaptors.groups.sites import is_users, is_users_class
from taskd.adaptors.training.proof.samples import ends_of, is_of_numbers, row_of, sample, storage_of
from taskd.adaptors.training.script.generators import state_of_generator
from taskd.adaptors.training.tree import is_numpy

_MOST: Final = 50_000
_DEPTH: Final = 9
_IN_LIBRARIES: Final = 3
"""Levels inside of a library's object that are read, counted from the script's own object."""
_MOST_ITEMS: Final = 2_000
_SMALL: Final = 4_096
_PLAIN: Final = (bool, int, float)
_NOTHING: Final = (str, bytes, type(None), complex, range, slice)
_TABLES: Final = ("_modules", "_parameters", "_buffers")
"""Attributes of a module that hold its tables; their names stand in no path."""
_PASSED_OVER: Final = frozenset(
    {"taskd", "threading", "_thread", "multiprocessing", "logging", "concurrent", "queue", "io", "_io", "socket", "ssl"}
    | {
        "subprocess",
        "asyncio",
        "tqdm",
        "wandb",
        "tensorboard",
        "tensorboardX",
        "matplotlib",
        "rich",
        "ctypes",
        "argparse",
    }
    | {"pathlib", "weakref", "_weakref", "inspect", "ast", "re", "enum", "typing", "datetime", "time", "types", "aim"}
    | {"mlflow", "comet_ml", "torchmetrics", "loguru", "msgspec", "zmq"}
)
"""First parts of the names of modules whose objects are skipped: they concern only themselves, or reach only output."""
_TORCH_PASSED_OVER: Final = ("torch._", "torch.distributed", "torch.utils.tensorboard", "torch.cuda", "torch.profiler")


class SeenKind(Enum):
    """Kind of a value at a path."""

    TENSOR = "tensor"
    NUMBER = "number"
    ROW = "list of numbers or texts"
    GENERATOR = "generator"


@dataclasses.dataclass(frozen=True)
class SeenValue:
    """Value that a walk has found at a path.

    Attributes:
        mark: bytes that differ once the value has changed.
        root: name that the path begins with.
        owner: path of the nearest object that holds it.
        owned_by: class of that object.
        name: its name in the owner: an attribute, a key, or the name of the variable.
        shape: shape of a tensor.
        where: weak reference to the owner, or to the tensor itself where a variable of the function holds it.
        of_data: whether a loader of the state leads there.
        in_part: whether a part of the state leads there.
        seed: seed of a generator.
    """

    kind: SeenKind
    mark: bytes
    root: str
    owner: str
    owned_by: type
    name: str
    shape: tuple[int, ...] = ()
    where: Any = None
    of_data: bool = False
    in_part: bool = False
    seed: int = 0


@dataclasses.dataclass
class WalkRoot:
    """Start of a walk: a variable's name, and its value.

    Attributes:
        anew: whether a new call of the function makes the variable itself anew.
        of_data, in_part: as in `SeenValue`.
    """

    name: str
    value: Any
    anew: bool = False
    of_data: bool = False
    in_part: bool = False
    of_library: bool = False


@dataclasses.dataclass
class _Step:
    """Object that is still to be visited."""

    path: str
    value: Any
    root: WalkRoot
    owner: str
    owned_by: type
    name: str
    holder: Any
    depth: int
    foreign: int
    in_table: bool = False


class Walk:
    """One walk.

    Args:
        held: ids of the state's objects, which are not entered.
        held_storages: addresses of the memory of the state's tensors.
    """

    def __init__(self, held: frozenset[int], held_storages: frozenset[int]) -> None:
        self.seen: dict[str, SeenValue] = {}
        self.whole = True
        self._held, self._storages = held, held_storages
        self._known: set[int] = set()
        self._left: deque[_Step] = deque()
        self._count = 0

    def run(self, roots: Iterable[WalkRoot], limit_s: float) -> None:
        """Visit all objects that the roots lead to."""
        end_s = time.monotonic() + limit_s
        steady: list[WalkRoot] = []
        anew: list[WalkRoot] = []
        for root in roots:
            (anew if root.anew else steady).append(root)
        for group in (steady, anew):  # an object that both lead to gets the path that stays
            for root in group:
                foreign = _IN_LIBRARIES if root.of_library else 0
                first = _Step(root.name, root.value, root, root.name, type(None), root.name, None, 0, foreign)
                self._left.append(first)
            self._go_on(end_s)

    def _go_on(self, end_s: float) -> None:
        while self._left and self.whole:
            self._count += 1
            self.whole = self._count <= _MOST and (self._count % 64 != 0 or time.monotonic() < end_s)
            self._look(self._left.popleft())

    def _look(self, step: _Step) -> None:
        value = step.value
        if isinstance(value, _PLAIN) or is_numpy(value):
            self._number(step)
        elif isinstance(value, torch.Tensor):
            self._tensor(step)
        elif not isinstance(value, _NOTHING) and not self._is_known(step):
            self._known.add(id(value))
            row = row_of(value)
            if row is not None:
                if self._is_kept(step):
                    self._note(step, SeenKind.ROW, row, where=_ref(step.holder))
                return
            generator = state_of_generator(value)
            if generator is not None:
                self._note(step, SeenKind.GENERATOR, generator.encode(), where=_ref(value), seed=_seed_of(value))
            elif step.depth < _DEPTH:
                self._left.extend(self._inside(step))

    def _is_known(self, step: _Step) -> bool:
        held = id(step.value) in self._held and not (step.root.in_part and not step.depth)
        return held or id(step.value) in self._known

    # Leaves.

    def _number(self, step: _Step) -> None:
        value = step.value
        if not self._is_kept(step):
            return
        if not is_numpy(value) or not getattr(value, "ndim", 0):
            self._note(step, SeenKind.NUMBER, repr(value).encode(), where=_ref(step.holder))
        elif value.size <= _SMALL:
            self._note(step, SeenKind.NUMBER, value.tobytes(), where=_ref(step.holder))
        else:
            self._note(step, SeenKind.ROW, ends_of(value), where=_ref(step.holder))

    def _is_kept(self, step: _Step) -> bool:
        """Return whether an object of the script, or a variable that no call makes anew, has this number."""
        is_variable = step.root.anew and (step.holder is None or step.holder is step.root)
        own = step.holder is None or is_users_class(step.owned_by) or step.owned_by in (FunctionType, dict)
        return own and not step.foreign and not is_variable and not step.root.in_part

    def _tensor(self, step: _Step) -> None:
        tensor = step.value
        if (
            step.foreign > _IN_LIBRARIES - 1
            and not step.in_table
            and not issubclass(step.owned_by, torch.optim.Optimizer)
        ):
            return
        if step.holder is None and step.root.anew:
            return
        mark = sample(tensor)
        if mark and storage_of(tensor) not in self._storages:
            where = _ref(tensor) if step.root.anew and step.holder is step.root else _ref(step.holder)
            self._note(step, SeenKind.TENSOR, mark, where=where, shape=tuple(tensor.shape))

    def _note(
        self, step: _Step, kind: SeenKind, mark: bytes, *, where: Any, shape: tuple[int, ...] = (), seed: int = 0
    ) -> None:
        root = step.root
        self.seen[step.path] = SeenValue(
            kind, mark, root.name, step.owner, step.owned_by, step.name, shape, where, root.of_data, root.in_part, seed
        )

    # Objects that hold others.

    def _inside(self, step: _Step) -> Iterator[_Step]:
        value = step.value
        items = items_of(value)
        if items is not None:
            yield from self._of_container(step, items)
        elif isinstance(value, FunctionType):
            yield from self._of_function(step, value)
        elif isinstance(value, MethodType):
            yield dataclasses.replace(step, value=value.__self__, depth=step.depth + 1)
        elif isinstance(value, type):
            if is_users_class(value):
                own = [(name, one) for name, one in vars(value).items() if isinstance(one, _PLAIN)]
                yield from self._attributes(step, own, value)
        elif not isinstance(value, ModuleType):
            yield from self._of_object(step)

    def _of_container(self, step: _Step, items: list[tuple[Any, Any]]) -> Iterator[_Step]:
        if len(items) > _MOST_ITEMS or is_of_numbers(value for _, value in items):
            return
        named = isinstance(step.value, dict)
        holder = step.holder if step.holder is not None else step.root if step.root.anew else step.value
        for number, (key, one) in enumerate(items):
            label = f"[{key!r}]" if named and isinstance(key, str | int) else f"[{number}]"
            owned_by = dict if named and step.owned_by in (type(None), ModuleType, FunctionType) else step.owned_by
            plain = isinstance(one, _PLAIN)
            if plain and not (named and isinstance(key, str)):
                continue
            yield dataclasses.replace(
                step, path=step.path + label, value=one, depth=step.depth + 1, holder=holder, owned_by=owned_by,
                name=str(key) if plain else step.name,
            )  # fmt: skip

    def _of_function(self, step: _Step, function: FunctionType) -> Iterator[_Step]:
        if not is_users(function.__code__.co_filename):
            return
        yield from self._attributes(step, list(vars(function).items()), function)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            content = content_of(cell)
            if content is not None and not isinstance(content, _PLAIN):
                inner = f"{step.path}.{name}"
                yield dataclasses.replace(step, path=inner, value=content, depth=step.depth + 1)

    def _of_object(self, step: _Step) -> Iterator[_Step]:
        value, kind = step.value, type(step.value)
        own = is_users_class(kind)
        module = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
        if not own and not module and is_passed_over(kind):
            return
        foreign = 0 if own else step.foreign + 1
        data = isinstance(value, DataLoader | Sampler | Dataset)
        if foreign > _IN_LIBRARIES and not module and not data and not step.root.of_library:
            return
        attributes = attributes_of(value)
        names = ("dataset", "sampler", "batch_sampler", "collate_fn") if isinstance(value, DataLoader) else None
        own_names = [(n, one) for n, one in attributes if names is None or n in names]
        yield from self._attributes(dataclasses.replace(step, foreign=foreign), own_names, value)

    def _attributes(self, step: _Step, attributes: list[tuple[str, Any]], holder: Any) -> Iterator[_Step]:
        kind = holder if isinstance(holder, type) else type(holder)
        module = isinstance(holder, torch.nn.Module)
        for name, value in attributes:
            if module and name in _TABLES and isinstance(value, dict):
                for key, inner in dict.items(value):
                    yield self._child(step, str(key), inner, holder, kind, in_table=name != "_modules")
            elif not (module or isinstance(holder, torch.optim.Optimizer)) or is_own_attribute(holder, name):
                yield self._child(step, name, value, holder, kind)

    def _child(self, step: _Step, name: str, value: Any, holder: Any, kind: type, *, in_table: bool = False) -> _Step:
        owner = step.owner if isinstance(holder, torch.nn.Module) else step.path
        return _Step(
            f"{step.path}.{name}", value, step.root, owner, kind, name, holder, step.depth + 1, step.foreign, in_table
        )  # fmt: skip


# Reading of values without calling their code.


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, by name."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(dict.items(found)) if isinstance(found, dict) else []


def items_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the items of a container, with keys or numbers; None if a value is no container."""
    if isinstance(value, dict):
        return list(dict.items(value))
    for kind in (list, tuple, deque, set):
        if isinstance(value, kind):
            return list(enumerate(kind.__iter__(value)))  # type: ignore[arg-type]
    return None


def content_of(cell: Any) -> Any:
    """Return the content of a closure's cell; None if it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def is_passed_over(kind: type) -> bool:
    """Return whether objects of a library's class are skipped."""
    name = kind.__module__
    return name.partition(".")[0] in _PASSED_OVER or name.startswith(_TORCH_PASSED_OVER)


def is_own_attribute(holder: Any, name: str) -> bool:
    """Return whether an attribute of a module or optimizer is none that torch gives it."""
    if isinstance(holder, torch.nn.Module):
        return not name.startswith("_")
    return name == "state" or not (name.startswith("_") or name in ("param_groups", "defaults"))


def _ref(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _seed_of(value: Any) -> int:
    return value.initial_seed() if isinstance(value, torch.Generator) else 0
