"""Attributes of modules that are neither parameters nor buffers: numbers and similar values that the training changes.

Rules:

1. They are read as the training function is entered. A new process gets each value that has changed since, if it had
   the same value at that time. The same holds for small tensors, and for lists and dicts of numbers.
2. The first steps show which attributes change from step to step. These are recorded before the first forward pass
   after a commit, and restored where a step is done again.
3. Attributes that their class reads are reported once, with the line: they may differ from rank to rank, and a new
   process has a peer's. An attribute that is filled once is a cache, and is not reported.
4. An attribute that changes between a commit and the next forward pass stays as it is, and is reported: it is unknown
   whether the script changes it again after a recovery.
5. A module may fill several attributes at its first use, one of which cannot be sent (a function, a large table). It
   fills all of them again in a new process: none of them is sent.
"""

import logging
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.training import tree
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.script.script_text import attribute_read_at
from taskd.adaptors.training.sharding.own_state import own_state

_log = logging.getLogger(__name__)
_STEPS: Final = 3
"""Number of first steps that show which attributes change."""
_OFTEN: Final = 2
_LARGEST: Final = 4096
"""Most values in one attribute that is kept."""
_SCALARS: Final = (type(None), bool, int, float, str)
_OWN: Final = frozenset(vars(torch.nn.Module()))
_Key = tuple[str, str]
Sent = tuple[str, str, bytes, bytes]
"""Path of the module, name of the attribute, its value at the entry into the training function, its present value."""


class _Print(bytes):
    """Fingerprint that shows a change of a value that cannot be sent. Other values are kept whole."""


_Look = dict[_Key, bytes]
_ABSENT: Final = b""
_UNFILLED: Final = (_ABSENT, tree.pack(None))


class Plain:
    """Plain attributes of the modules among the parts, as they are now.

    Args:
        parts: parts by name.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        libraries = [part for part in parts.values() if isinstance(part, LibraryPart)]
        self._passed_over = _OWN.union(*(part.set_anew for part in libraries))
        self._modules: dict[str, torch.nn.Module] = {}
        self._left_out: frozenset[int] = frozenset()
        self._made: _Look | None = None
        self._unlike: frozenset[_Key] = frozenset()
        """Attributes that were there as the function was entered, of kinds that are not inspected."""
        self._committed: _Look = {}
        self._saved: _Look = {}
        self._between: dict[_Key, int] = {}
        self._within: dict[_Key, int] = {}
        self._known: set[_Key] = set()
        self._steps_left = _STEPS
        self._told_late = False

    def leave_out(self, modules: Iterable[torch.nn.Module]) -> None:
        """Leave out these modules: other code keeps their own attributes. Call it before the training."""
        self._left_out = frozenset(map(id, modules))

    def begin(self) -> None:
        """Read all attributes as the training function is entered."""
        found = _modules_of(self._parts)
        self._modules = {path: module for path, module in found if id(module) not in self._left_out}
        told = filter(None, map(own_state, self._parts.values()))
        self._passed_over = self._passed_over.union(*(own.attributes for own in told))
        self._made = self._committed = self._all()
        self._unlike = frozenset(key for key in self._keys() if key not in self._made)
        self._steps_left = _STEPS

    @property
    def watching(self) -> bool:
        """True if any attribute must be recorded in the next step."""
        return bool(self._steps_left or self._within)

    def save(self) -> None:
        """Record the values before the first forward pass after a commit."""
        if not self._steps_left:
            self._saved = {key: self._now(key) for key in self._within}
        elif self._made is not None:
            self._saved = self._all()
            self._count(self._between, self._committed, self._saved)

    def committed(self) -> None:
        """Compare the values at the end of a step that had a forward pass."""
        saved, self._saved = self._saved, {}
        if not self._steps_left:
            return
        self._steps_left -= 1
        if self._made is None:
            return
        self._committed = self._all()
        self._count(self._within, saved, self._committed)
        if not self._steps_left:
            self._tell()
            self._known = {*self._between, *self._within}
            self._within = {key: count for key, count in self._within.items() if self._is_saved(key, count)}

    def put_back(self) -> None:
        """Restore the values from before the forward pass."""
        moved = {key: was for key, was in self._saved.items() if self._now(key) != was}
        filled = self._filled_together(self._made or {}, self._all()) if moved else set()
        for key, was in moved.items():
            if not isinstance(was, _Print) and key not in filled:
                self._put(key, was)
        self._saved = {}

    def tell_late(self) -> None:
        """Warn, as a step is done again, of an attribute that it may have changed and that is not restored."""
        if self._steps_left or self._told_late:
            return
        changed = set(_differ(self._committed, self._all())) - self._known
        late = [key for key in sorted(changed) if self._read_at(key)]
        if late:
            self._told_late = True
            _log.warning(
                "%s has changed since the first steps, and is no buffer: if the step that is now done again had "
                "changed it, it changes twice; make it a buffer, or a function of state.step",
                self._named(late[0]),
            )

    def changed(self) -> list[Sent]:
        """Return the attributes that have changed since the function was entered."""
        if self._made is None:
            return []
        made, now = self._made, self._all()
        together = self._filled_together(made, now)
        return [
            (*key, made.get(key, _ABSENT), now[key])
            for key in _differ(made, now)
            if key in now and not isinstance(now[key], _Print) and key not in together
        ]

    def put(self, given: Sequence[Sent]) -> None:
        """Set a peer's values, on top of the last commit's, where this process had the same value at the entry."""
        self.put_back()
        others = []
        self._undo({(path, name) for path, name, *_ in given})
        for path, name, was, now in given:
            mine = (self._made or {}).get((path, name), _ABSENT)
            if path in self._modules and mine == was:
                self._put((path, name), now)
            else:
                others.append((path, name))
        self._committed = self._all()
        if others:
            _log.warning(
                "%s has been changed by the training, and was not the same on all ranks before: it stays as this "
                "process's set-up has made it; make it a buffer if it decides what is trained",
                ".".join(others[0]),
            )

    def _undo(self, kept: Set[_Key]) -> None:
        """Restore, as at the function's entry, the attributes that have changed in this process alone."""
        made, now = self._made or {}, self._all()
        kept = kept | self._filled_together(made, now)
        for key in set(_differ(made, now)) - kept if made else ():
            was = made.get(key, _ABSENT)
            if not isinstance(was, _Print) and not isinstance(now.get(key), _Print):
                self._put(key, was)

    def _filled_together(self, made: _Look, now: _Look) -> set[_Key]:
        """Return attributes that were filled since, in modules that have filled one that cannot be sent."""
        filled = [key for key in self._keys() if key not in self._unlike and made.get(key, _ABSENT) in _UNFILLED]
        modules = {key[0] for key in filled if isinstance(now.get(key, _Print()), _Print)}
        return {key for key in filled if key[0] in modules}

    def _keys(self) -> list[_Key]:
        return [
            (path, name)
            for path, module in self._modules.items()
            for name in vars(module)
            if name not in self._passed_over
        ]

    def _all(self) -> _Look:
        return {
            (path, name): put_down
            for path, module in self._modules.items()
            for name, value in vars(module).items()
            if name not in self._passed_over and (put_down := _put_down(value)) is not None
        }

    def _now(self, key: _Key) -> bytes:
        own = vars(self._modules[key[0]])
        return (_put_down(own[key[1]]) if key[1] in own else None) or _ABSENT

    def _put(self, key: _Key, value: bytes) -> None:
        module = self._modules[key[0]]
        if value == _ABSENT:
            vars(module).pop(key[1], None)
            return
        made = tree.unpack(value)
        if isinstance(made, torch.Tensor):
            own = vars(module).get(key[1])
            like = own if isinstance(own, torch.Tensor) else next(module.parameters(), made)
            made = made.to(like.device)
        vars(module)[key[1]] = made

    def _count(self, counts: dict[_Key, int], before: _Look, after: _Look) -> None:
        for key in _differ(before, after):
            if not isinstance(after.get(key), _Print) or isinstance((self._made or {}).get(key), _Print):
                counts[key] = counts.get(key, 0) + 1

    def _is_saved(self, key: _Key, count: int) -> bool:
        """Return whether an attribute can be saved and is no cache that was filled."""
        filled = count == 1 and (self._made or {}).get(key, _ABSENT) in _UNFILLED
        return not filled and not isinstance(self._committed.get(key), _Print)

    def _tell(self) -> None:
        if dist.is_initialized() and dist.get_rank():
            return
        steady = [key for key, count in self._within.items() if count >= _OFTEN and self._read_at(key)]
        lost = [key for key in steady if isinstance(self._committed.get(key), _Print)]
        kept = [key for key in steady if key not in lost]
        between = [key for key, count in self._between.items() if count >= _OFTEN and self._read_at(key)]
        if lost:
            self._warn(
                lost, "a process that takes a rank over has that of its set-up, a step done again changes it twice"
            )
        if kept:
            self._warn(kept, "a process that takes a rank over has a peer's, which is another's if they differ")
        if between:
            self._warn(
                between,
                "it changes between a commit and the next forward pass, and what a fault interrupts there may be left "
                "out or done twice: let it change before the commit, or set it from state.step",
            )

    def _warn(self, keys: list[_Key], what: str) -> None:
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        _log.warning(
            "%s%s is changed by the training, and is neither parameter nor buffer: %s; register_buffer() makes it one",
            self._named(keys[0]),
            more,
            what,
        )

    def _named(self, key: _Key) -> str:
        return f"{'.'.join(key)} ({type(self._modules[key[0]]).__name__}, {self._read_at(key)})"

    def _read_at(self, key: _Key) -> str:
        """Return `file:line` where the module's class or the script reads it; "" if it is only written."""
        classes = [one.__module__ for one in type(self._modules[key[0]]).__mro__ if issubclass(one, torch.nn.Module)]
        texts = [getattr(sys.modules.get(name), "__file__", None) for name in [*classes[:-1], "__main__"]]
        return attribute_read_at(filter(None, texts), key[1])


def _modules_of(parts: Mapping[str, Any]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield each module once, by its path, except modules of torch that wrap the script's own."""
    seen: set[int] = set()
    for name, part in parts.items():
        for inner, module in part.named_modules() if isinstance(part, torch.nn.Module) else ():
            wraps = isinstance(module, DistributedDataParallel | torch.jit.ScriptModule)
            if id(module) not in seen and not wraps and not type(module).__module__.startswith("torch._dynamo"):
                yield ".".join(filter(None, (name, inner))), module
            seen.add(id(module))


def _put_down(value: Any) -> bytes | None:
    """Return bytes that stay equal as long as this value does; None for a value that is not inspected."""
    try:
        if _is_small(value):
            return tree.pack(value)
        if isinstance(value, torch.Tensor):
            known = not value.requires_grad and not value.is_inference()
            return _Print(f"{id(value)} {value._version}".encode()) if known else None
        known = type(value).__module__.partition(".")[0] in ("collections", "numpy") and not callable(value)
        return _Print(pickle.dumps(value)) if known else None
    except (TypeError, ValueError, AttributeError, RuntimeError, pickle.PicklingError):
        return None


def _is_small(value: Any) -> bool:
    """Return whether it has few values, each of which can be sent."""
    count, left = 0, [value]
    while left and count <= _LARGEST:
        one = left.pop()
        count += 1
        if type(one) in (list, tuple, dict) and len(one) <= _LARGEST:
            left.extend([*one, *one.values()] if type(one) is dict else one)
        elif type(one) is torch.Tensor and one.layout is torch.strided and not one.is_quantized:
            if one.requires_grad or one.is_meta:
                return False
            count += one.numel()
        elif type(one) not in _SCALARS:
            if not tree.is_numpy(one):
                return False
            count += one.size
    return count <= _LARGEST


def _differ(before: _Look, after: _Look) -> list[_Key]:
    return [key for key in before | after if before.get(key, _ABSENT) != after.get(key, _ABSENT)]
