"""The content of a checkpoint: tensors of the replicated parts, by name, and an outline of the parts around them.

Rules:

1. Tensors have the names of torch's own checkpoints (`model.fc.weight`, `optimizer.state.fc.weight.exp_avg`), free of
   the wrappers of DDP and `torch.compile`. `torch.distributed.checkpoint.load` reads them without taskd.
2. Other values are in the outline exactly as they were, because torch's format turns integer keys into strings.
3. Parameters and optimizer state are equal on all ranks of a replica set: each rank offers them, and torch divides the
   writing. Buffers may differ (BatchNorm), and DDP uses those of rank 0. So only the set's first rank offers them, and
   all that is neither. Of a sharded value each rank offers its part.
4. An optimizer is never stepped to read its state. torch's `get_optimizer_state_dict` does that if there is none yet.
5. Nothing is put into the parts before everything has been read.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.seams.parts import IN_CHECKPOINT
from taskd.adaptors.training import tree
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.own_state import own_state
from taskd.adaptors.training.sharding.partitions import load, state_of
from taskd.errors import CheckpointError

Path = list[str | int]
Rows = list[tuple[Path, Any]]
Entries = dict[str, Any]


@dataclass(frozen=True)
class Leaf:
    """A piece of a part's state.

    Attributes:
        path: its place in the state.
        value: a tensor, or anything else.
        shared: whether it is equal on all ranks, or divided among them: each rank offers it.
        listed: whether it has a name in torch's checkpoint even if it is no tensor.
    """

    path: Path
    value: Any
    shared: bool = False
    listed: bool = False


@dataclass(frozen=True)
class Content:
    """One rank's content for a checkpoint.

    Attributes:
        outline: the encoded outline.
        entries: values that it offers to write, by name.
        tensors: all its tensors, by their own names, even if they are renamed in `entries`.
        listed: values that have a name although they are no tensors.
        size_bytes: size of all tensors, of sharded ones the whole size.
    """

    outline: bytes
    entries: Entries
    tensors: Entries
    listed: Entries
    size_bytes: int


def collect(parts: Parts, *, is_first: bool, lists: bool, renamed: Mapping[str, str] = MappingProxyType({})) -> Content:
    """Return the content of the replicated parts, with the tensors themselves, not copies of them.

    Args:
        parts: parts of the state.
        is_first: this rank offers values that may differ within its replica set.
        lists: it offers listed values, which are no tensors.
        renamed: new names of tensors, by their own names.

    Raises:
        CheckpointError: a trainer's adapter reads the state of a part (`OwnState`).
        Exception: any exception of a part's `state_dict()`.
    """
    _refuse_told(parts)
    entries: Entries = {}
    offered: Entries = {}
    listed: Entries = {}
    outline: dict[str, Rows] = {}
    for name, part in parts.replicated.items():
        rows = outline[name] = []
        for leaf in _leaves(part, parts.modules):
            full_name = ".".join(map(str, (name, *leaf.path)))
            taken: Entries = {}
            take = functools.partial(_take, entries, taken, full_name, renamed)
            rows.append((leaf.path, tree.fold(leaf.value, take)))
            if leaf.listed and not taken:
                listed[full_name] = leaf.value
            if leaf.shared or is_first:
                offered |= taken
    if lists:
        offered |= listed
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in entries.values())
    return Content(msgspec.msgpack.encode(outline), offered, entries, listed, size_bytes)


class Draft:
    """The state of all parts as an outline describes it, with tensors that are still to be filled.

    Args:
        parts: the parts for which it is meant; they are not changed before `put`.
        outline: what `collect` encoded, decoded.
        of_stage: the parts may be those of a pipeline's stage; values that they do not have are left out.

    Attributes:
        targets: the tensors to be filled, by name.

    Raises:
        CheckpointError: a part is missing in the outline, or has other parameters or shapes.
        RestoreError: the outline is damaged.
    """

    def __init__(self, parts: Parts, outline: Mapping[str, Rows], *, of_stage: bool = False) -> None:
        _refuse_told(parts)
        self._parts = parts
        self._of_stage = of_stage
        rows = outline
        missing = [name for name in parts.replicated if name not in rows]
        if missing:
            raise CheckpointError(
                f"the checkpoint has the parts {', '.join(rows)}, expected also {', '.join(missing)}; "
                "pass the same parts to TrainState as the job that wrote it, under the same names"
            )
        self.left_out = [name for name in rows if name not in parts.replicated]
        self.targets: dict[str, torch.Tensor] = {}
        self._filled = {name: self._prepare(name, part, rows[name]) for name, part in parts.replicated.items()}

    def put(self) -> None:
        """Load the filled state into the parts.

        Raises:
            Exception: any exception of a part's `load_state_dict()`.
        """
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        for name, part in self._parts.replicated.items():
            filled = self._filled[name]
            if isinstance(part, torch.nn.Module):
                set_model_state_dict(_bare(part), filled)
            else:
                load(part, filled)

    def _prepare(self, name: str, part: Any, rows: Rows) -> Any:
        own: dict[Any, Any] = {}
        if isinstance(part, torch.nn.Module):
            own = _model_state(part)
        elif isinstance(part, torch.optim.Optimizer):
            fqns = _fqns(part, self._parts.modules)
            own = {fqns[index]: parameter for index, parameter in _indexed(part)}
        if self._of_stage and own:
            rows = [*_known_here(rows, own, part)]
        values = [(path, tree.unfold(folded, self._give, own.get(_subject(path)))) for path, folded in rows]
        if isinstance(part, torch.nn.Module):
            filled = {str(path[0]): value for path, value in values}
            _compare_model(name, filled, own)
            return filled
        if isinstance(part, torch.optim.Optimizer):
            return _optimizer_state(name, part, self._parts.modules, values)
        return values[0][1]

    def _give(self, body: Any, own: torch.Tensor | None) -> torch.Tensor:
        name, dtype, shape = body
        if name not in self.targets:
            if _is_sharded(own) and list(own.shape) == shape:
                self.targets[name] = torch.empty_like(own, dtype=tree.dtype_of(dtype))  # sharded as on this rank
            else:
                self.targets[name] = torch.empty(shape, dtype=tree.dtype_of(dtype))
        return self.targets[name]


def _refuse_told(parts: Parts) -> None:
    for name, part in parts.replicated.items():
        if own_state(part) is not None:
            raise CheckpointError(
                f"found the part {name!r}, a {type(part).__name__} whose state its trainer tells, expected one with a "
                "state_dict of its own; save and load with the trainer (DeepSpeed: engine.save_checkpoint)"
            )


def _take(entries: Entries, taken: Entries, name: str, renamed: Mapping[str, str], tensor: torch.Tensor) -> Any:
    unique = name if name not in entries else f"{name}#{len(entries)}"
    entries[unique] = tensor
    written = renamed.get(unique, unique)
    taken[written] = tensor
    return [written, tree.dtype_name(tensor.dtype), list(tensor.shape)]


def _leaves(part: Any, modules: list[torch.nn.Module]) -> Iterator[Leaf]:
    if isinstance(part, torch.nn.Module):
        parameters = set(_names(part).values())
        for name, value in _model_state(part).items():
            yield Leaf([name], value, shared=name in parameters or _is_sharded(value))
    elif isinstance(part, torch.optim.Optimizer):
        yield from _optimizer_leaves(part, modules)
    else:
        yield Leaf([], part.state_dict())


def _optimizer_leaves(optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module]) -> Iterator[Leaf]:
    fqns = _fqns(optimizer, modules)
    for key, value in state_of(optimizer).items():
        if key == "state":
            for index, its in value.items():
                for name, item in its.items():
                    yield Leaf([key, fqns.get(index, index), name], item, shared=True)
        elif key == "param_groups":
            for number, group in enumerate(value):
                for name, item in group.items():
                    named = [fqns[index] for index in item] if name == "params" else item
                    yield Leaf([key, number, name], named, listed=True)
        else:
            yield Leaf([key], value)


def _optimizer_state(
    name: str, optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module], values: list[tuple[Path, Any]]
) -> dict[str, Any]:
    """Return the argument for `optimizer.load_state_dict`: numbers for the names, in the order of this optimizer."""
    fqns = _fqns(optimizer, modules)
    numbers = {fqn: index for index, fqn in fqns.items()}
    state: dict[Any, dict[Any, Any]] = {}
    groups: dict[Any, dict[Any, Any]] = {}
    rest: dict[str, Any] = {}
    for path, value in values:
        match path:
            case ["state", fqn, key]:
                state.setdefault(numbers.get(fqn, fqn), {})[key] = value
            case ["param_groups", number, key]:
                groups.setdefault(number, {})[key] = value
            case _:
                rest[str(path[0])] = value
    own = state_of(optimizer)["param_groups"]
    for number, group in enumerate(own):
        wanted = {fqns[index] for index in group["params"]}
        found = set(groups.get(number, {}).get("params", ()))
        if found != wanted or len(groups) != len(own):
            raise CheckpointError(
                f"{name}: parameter group {number} of {len(groups)} in the checkpoint has {_some(found)}, expected "
                f"{len(own)} groups and here {_some(wanted)}; build model and optimizer as the job that wrote it did"
            )
        groups[number]["params"] = group["params"]
    return {**rest, "state": state, "param_groups": [groups[number] for number in sorted(groups)]}


def _known_here(rows: Rows, own: Mapping[Any, Any], part: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the rows of parameters and buffers with the names in `own`, and the rows that belong to none."""
    for path, value in rows:
        match path:
            case [name] if isinstance(part, torch.nn.Module):
                if name in own:
                    yield path, value
            case ["state", name, _]:
                if name in own:
                    yield path, value
            case ["param_groups", _, "params"]:
                yield path, [value[0], [name for name in value[1] if name in own]]
            case _:
                yield path, value


def _compare_model(name: str, found: dict[str, Any], own: dict[str, Any]) -> None:
    differing = [
        f"{key} has shape {list(value.shape)}, expected {list(own[key].shape)}"
        for key, value in found.items()
        if isinstance(value, torch.Tensor) and key in own and value.shape != own[key].shape
    ]
    differing += [f"{key} is in the checkpoint, but not in the model" for key in found.keys() - own.keys()]
    differing += [f"{key} is in the model, but not in the checkpoint" for key in own.keys() - found.keys()]
    if differing:
        raise CheckpointError(
            f"{name}: {'; '.join(sorted(differing)[:3])}{_more(len(differing))}; build the model as the job that wrote "
            "the checkpoint did, or take another directory"
        )


def _bare(module: torch.nn.Module) -> torch.nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _model_state(module: torch.nn.Module) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return dict(get_model_state_dict(_bare(module)))


def _names(module: torch.nn.Module) -> dict[torch.nn.Parameter, str]:
    """Return the name of each parameter as torch's checkpoints give it."""
    if misfit := IN_CHECKPOINT.misfit():
        raise CheckpointError(misfit)
    from torch.distributed.checkpoint.state_dict import _get_fqns

    bare = _bare(module)
    return {parameter: next(iter(_get_fqns(bare, name))) for name, parameter in bare.named_parameters()}


def _indexed(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.nn.Parameter]]:
    """Return an iterator over the parameters with their numbers in `optimizer.state_dict()`."""
    return enumerate(parameter for group in optimizer.param_groups for parameter in group["params"])


def _fqns(optimizer: torch.optim.Optimizer, modules: list[torch.nn.Module]) -> dict[int, str | int]:
    """Return a name for each parameter's number: the one in the module that has them all, else the number itself."""
    indexed = list(_indexed(optimizer))
    for module in modules:
        names = _names(module)
        if all(parameter in names for _, parameter in indexed):
            return {index: names[parameter] for index, parameter in indexed}
    return {index: index for index, _ in indexed}


def _is_sharded(value: Any) -> TypeGuard[torch.Tensor]:
    return hasattr(value, "_local_tensor")


def _subject(path: Path) -> str | int | None:
    """Return the name of the parameter or buffer that a leaf belongs to; None if it belongs to none."""
    if len(path) == 1:
        return path[0]
    return path[1] if path and path[0] == "state" else None


def _some(names: set[Any]) -> str:
    shown = sorted(map(str, names))
    return f"{', '.join(shown[:3])}{_more(len(shown))}" if shown else "no parameters"


def _more(count: int) -> str:
    return f" and {count - 3} more" if count > 3 else ""
