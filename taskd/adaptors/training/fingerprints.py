"""Fingerprints of the values of a training, for a comparison of two runs.

Rules:

1. Equal content has equal fingerprints in every process. A fingerprint contains no address, no order of a set and no
   hash of Python's.
2. The attributes of the script's objects are read. None of their code is called, except `state_dict()` of a part, which
   taskd calls anyway. A value that cannot be read has the fingerprint "".
3. At most `_MOST_BYTES` are read of one value, and its contents are followed `_DEPTH` levels deep.
"""

import hashlib
import random
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import torch

from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.script.generators import state_of_generator, text_of_state

_DEPTH: Final = 6
_MOST_BYTES: Final = 1 << 28
_MOST_ITEMS: Final = 20_000


class _UnreadableError(Exception):
    """The value is of a kind that cannot be compared."""


class Fingerprint:
    """Fingerprint of one value. `text` is "" if it cannot be compared.

    `moves`: the value contains a generator, or a tensor or array with at least one dimension.
    """

    def __init__(self, value: Any, own: frozenset[int] = frozenset()) -> None:
        """Compute the fingerprint. `own`: ids of objects that are compared elsewhere and are not read here."""
        self.moves = False
        self._own = own
        self._left = _MOST_ITEMS
        self._bytes = _MOST_BYTES
        self._digest = hashlib.blake2b(digest_size=8)
        try:
            self._feed(value, _DEPTH)
            self.text = self._digest.hexdigest()
        except (_UnreadableError, RuntimeError, TypeError, NotImplementedError):
            self.text = ""

    def _feed(self, value: Any, depth: int) -> None:
        self._left -= 1
        if depth < 0 or self._left < 0 or id(value) in self._own:
            raise _UnreadableError
        numbers = state_of_generator(value)
        if isinstance(value, bool | int | float | complex | str | bytes | type(None) | range | slice):
            self._add(type(value).__name__, repr(value))
        elif numbers is not None:
            self.moves = True
            self._add(type(value).__name__, numbers)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, torch.nn.Module):
            self._feed({**dict(value.named_parameters()), **dict(value.named_buffers())}, depth - 1)
        elif isinstance(value, torch.optim.Optimizer):
            self._feed(_of_optimizer(value), depth)
        elif isinstance(value, Mapping):
            self._add("dict", str(len(value)))
            for key in sorted(value, key=_order):
                self._add("key", _order(key))
                self._feed(value[key], depth - 1)
        elif isinstance(value, list | tuple | deque):
            self._add("list", str(len(value)))
            for one in value:
                self._feed(one, depth - 1)
        elif isinstance(value, set | frozenset):
            self._add("set", repr(sorted(map(repr, value))))
        else:
            self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            if getattr(value, "dtype", None) is None or value.dtype.hasobject:
                raise _UnreadableError
            self._spend(value.nbytes)
            self.moves = self.moves or value.ndim > 0
            self._digest.update(value.tobytes())
            return
        attributes = getattr(value, "__dict__", None)
        if attributes is None or callable(value) or isinstance(value, type):
            raise _UnreadableError
        self._add("object", type(value).__qualname__)
        readable = 0
        for name in sorted(attributes):
            inner = Fingerprint(attributes[name], self._own) if depth > 0 else None
            if inner is not None and inner.text:
                readable += 1
                self.moves = self.moves or inner.moves
                self._add(name, inner.text)
        if not readable:
            raise _UnreadableError

    def _tensor(self, value: torch.Tensor) -> None:
        local = value.to_local() if hasattr(value, "to_local") else value
        self._spend(local.numel() * local.element_size())
        self.moves = self.moves or local.dim() > 0
        self._add("tensor", f"{tuple(local.shape)}{local.dtype}{digest([local])}")

    def _spend(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        if self._bytes < 0:
            raise _UnreadableError

    def _add(self, kind: str, text: str) -> None:
        self._digest.update(f"{kind}:{len(text)}:{text};".encode())


def of_part(part: Any) -> str:
    """Return the fingerprint of a part of the state that is equal on all ranks."""
    if isinstance(part, torch.nn.Module | torch.optim.Optimizer):
        return Fingerprint(part).text
    save = getattr(part, "state_dict", None)
    return Fingerprint(save()).text if save is not None else ""


def of_random_numbers() -> dict[str, str]:
    """Return the fingerprint of each global random generator of this process, by its name."""
    found = {"python": _short(repr(random.getstate())), "torch": digest([torch.default_generator.get_state()])}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found["numpy"] = _short(text_of_state(numpy.get_state()))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = digest([torch.cuda.get_rng_state()])
    return found


def of_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the fingerprint of the arguments of a model's forward pass."""
    return Fingerprint([*args, kwargs]).text


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _order(key: Any) -> str:
    return f"{type(key).__name__}:{key!r}" if isinstance(key, str | int | float | bool | tuple) else str(key)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> list[Any]:
    groups = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
    return [groups, [optimizer.state.get(one) or {} for group in optimizer.param_groups for one in group["params"]]]
