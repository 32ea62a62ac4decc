"""Trial of the state at the first commit: whether a recovery could record and load it, before it has to.

Rules:

1. The state is folded as a donor folds it, once in a process's life. No tensor is copied, and no tensor's bytes are
   read.
2. A value that travels as a pickle is written without its tensors, a megabyte of it at most. It is loaded as a receiver
   loads it.
3. A value that cannot be loaded is named: the part, the key, the type. Each type in a part is named once.
4. After a second the rest is left untried.
"""

import io
import logging
import pickle
import re
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import torch

from taskd.adaptors.groups.instances import imported
from taskd.adaptors.training import tree
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.parts.kinds import has_state
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.partitions import state_of
from taskd.errors import RestoreError

_log = logging.getLogger(__name__)
_LIMIT_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20
_MOST_NAMED: Final = 3
_REFUSED: Final = re.compile(r"(?:GLOBAL|global|Unsupported class|class) ([\w.]+\.[\w.]+)")
_REMEDY: Final = (
    "Keep tensors, numbers, strings and containers of them in its state_dict(), or allow the type on every rank with "
    "torch.serialization.add_safe_globals."
)


class _OutOfTimeError(Exception):
    """Raised once the trial has taken its time."""


class _TooLargeError(Exception):
    """Raised for a pickle that is too large to try."""


class _Limited(io.BytesIO):
    """File that a large pickle does not fit into."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MOST_BYTES:
            raise _TooLargeError
        return super().write(data)


class _Hollow(pickle.Pickler):
    """Pickler that writes an empty container in place of each tensor."""

    def __init__(self, _file: Any, protocol: int | None = None) -> None:
        self._limited, self._file = _Limited(), _file
        super().__init__(self._limited, protocol)

    def dump(self, obj: Any) -> None:
        super().dump(obj)
        self._file.write(self._limited.getvalue())

    def reducer_override(self, obj: Any) -> Any:
        """Replace a tensor or storage by an empty container. `pickle.Pickler` calls this."""
        storage = isinstance(obj, torch.UntypedStorage | torch.TypedStorage)
        return (OrderedDict, ()) if storage or isinstance(obj, torch.Tensor) else NotImplemented


class _HollowPickle:
    """Replacement of the module `pickle` for `torch.save`."""

    __name__ = "pickle"
    Pickler = _Hollow


def unloadable(parts: Parts) -> list[Matter]:
    """Return the parts of the present state that could not be loaded after a fault."""
    end_s = time.monotonic() + _LIMIT_S
    found: list[Matter] = []
    try:
        for name, part, state in states_of(parts):
            what = f"the {type(part).__name__} {name!r} of the TrainState made at {parts.made_at}"
            named: dict[str, str] = {}
            for path, reason in _bad(state, end_s):
                if len(named) < _MOST_NAMED:
                    named.setdefault(reason, path)
            found += [_matter(what, path, reason) for reason, path in named.items()]
    except _OutOfTimeError:
        _log.info("the state was tried out for %g s at the first commit; the rest of it is not tried", _LIMIT_S)
    return found


def _matter(what: str, path: str, reason: str) -> Matter:
    where = f"under {path}" if path else "as its state"
    return Matter(f"{what} has {reason} {where}, which cannot be loaded after a fault", _REMEDY, no_rebuild=True)


def states_of(parts: Parts) -> Iterator[tuple[str, Any, Any]]:
    """Yield each part with its name and the state that a recovery records of it."""
    sharded = imported("torch.distributed.fsdp", "FullyShardedDataParallel")
    for name, part in parts.replicated.items():
        modules = part.modules() if isinstance(part, torch.nn.Module) else ()
        if sharded is None or not any(isinstance(module, sharded) for module in modules):  # its state is a collective
            yield name, part, state_of(part)
    for name, part in parts.positions.items():
        if name not in parts.places and has_state(part):
            yield name, part, part.state_dict()


def _bad(value: Any, end_s: float) -> Iterator[tuple[str, str]]:
    """Yield the path in a state of each value that cannot be loaded, and a text on the value."""
    left: list[tuple[str, Any]] = [("", value)]
    within: set[int] = set()
    while left:
        path, one = left.pop()
        if time.monotonic() > end_s:
            raise _OutOfTimeError
        items = _items(path, one)
        if items and id(one) not in within:
            within.add(id(one))
            left.extend(reversed(items))
        if tree.is_container(one) or _travels(one):
            continue
        reason = _why_not(one)
        if reason and not (items and any(_why_not(item) for _, item in items if not _travels(item))):
            yield path, reason


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return the items of a container, keys too, each with its path."""
    if isinstance(value, dict):
        pairs = list(dict.items(value))  # not the `items` of a class of the script's
        keys = [(f"{path}[{_short(key)}]", key) for key, _ in pairs if type(key) not in (str, int)]
        return [*keys, *((f"{path}[{_short(key)}]" if path else _short(key), item) for key, item in pairs)]
    kind = next((kind for kind in (list, tuple, deque) if isinstance(value, kind)), None)
    return [] if kind is None else [(f"{path}[{number}]", one) for number, one in enumerate(kind.__iter__(value))]


def _travels(value: Any) -> bool:
    """Return whether a value needs no pickle, or is a tensor."""
    plain = type(value) in (bool, int, float, str, bytes, type(None))
    return plain or isinstance(value, torch.Tensor) or tree.is_numpy(value)


def _why_not(value: Any) -> str:
    """Return a text on the obstacle to loading a value; "" if there is none."""
    try:
        tree.load(tree.save(value, _HollowPickle))
    except _TooLargeError:
        return ""
    except RestoreError as error:
        if not isinstance(error.__cause__, pickle.UnpicklingError):
            return ""  # its type is allowed, and lacks only the tensors that were left out
        named = _REFUSED.search(str(error))
        inner = f" ({named.group(1)})" if named and not named.group(1).endswith(type(value).__qualname__) else ""
        return f"a {_name_of(value)}{inner}"
    except Exception as error:  # noqa: BLE001 - a value may raise any error as it is pickled
        return f"a {_name_of(value)} that cannot be pickled ({str(error)[:80]})"
    return ""


def _name_of(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."
