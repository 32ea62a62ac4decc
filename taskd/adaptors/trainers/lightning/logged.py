"""Values that `self.log` has gathered: sums of this rank alone (`Sums`), the model's metrics objects, values shown.

Rules:

1. Lightning replaces the tensors of its sums and never changes them in place. The exception is the count of samples,
   which it reduces in place at an epoch's end. So only the count is copied.
2. A new process needs all sums by an epoch's end, since reducing them is a collective. It makes those that it has not
   logged itself from a peer's description of them.
3. A metrics object (torchmetrics) changes its tensors in place: they are copied.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from taskd.adaptors.trainers.lightning.encoding import decode, encode

_OF_SUM: Final = ("value", "_forward_cache", "_computed", "has_reset", "_update_count")
_COUNT: Final = "cumulated_batch_size"
_OF_METRIC: Final = ("_computed", "_forward_cache", "_update_count", "_is_synced", "_cache")
_META: Final = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "dataloader_idx",
    "metric_attribute",
)  # fmt: skip
_SHOWN: Final = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")
_Sum = tuple[Any, ...]


class Sums:
    """The sums of one loop, which `find` returns. `kinds` is Lightning's module that makes them."""

    def __init__(self, find: Callable[[], Any], kinds: Any) -> None:
        self._find = find
        self._kinds = kinds

    def take(self) -> dict[str, _Sum]:
        """Return the present sums, by key."""
        return {key: _taken(one) for key, one in self._find().items()}

    def put(self, taken: dict[str, _Sum]) -> None:
        """Set the sums back to these."""
        found = self._find()
        for key in [key for key in found if key not in taken]:
            del found[key]
        for key, (count, values) in taken.items():
            own = vars(found[key])
            own.update(zip(_OF_SUM, values, strict=True))
            if count is not None:
                own[_COUNT] = count.clone()

    def encode(self) -> list[Any]:
        """Return this rank's own part of the sums."""
        found = []
        for key, one in self._find().items():
            own = vars(one)
            values = [encode(own.get(name)) for name in (_OF_SUM if one.is_tensor else _OF_SUM[1:]) + (_COUNT,)]
            found.append([key, values])
        return found

    def decode(self, encoded: list[Any], device: torch.device) -> None:
        """Take over the part of this rank's former process. Sums of other names are dropped."""
        found = self._find()
        for key, values in encoded:
            if key in found:
                names = (_OF_SUM if found[key].is_tensor else _OF_SUM[1:]) + (_COUNT,)
                own = vars(found[key])
                own.update((n, decode(v, device)) for n, v in zip(names, values, strict=True) if n in own)
        for key in {*found}.difference(key for key, _ in encoded):
            del found[key]

    def describe(self) -> list[Any]:
        """Return how each sum is reduced and shown: the same on all ranks."""
        found = []
        for key, one in self._find().items():
            meta, sync = one.meta, one.meta.sync
            if sync.group is None:
                fields = [getattr(meta, name) for name in _META]
                synced = [sync.should, sync.rank_zero_only, sync.op, sync.fn is not None]
                found.append([key, fields, meta.reduce_fx.__name__, synced, one.is_tensor])
        return found

    def make(self, described: list[Any], model: Any, reduce: Callable[..., Any]) -> None:
        """Make the described sums that are not there."""
        found, kinds = self._find(), self._kinds
        for key, fields, reduction, (should, zero_only, op, with_function), is_tensor in described:
            if key in found:
                continue
            meta = kinds._Metadata(**dict(zip(_META, fields, strict=True)), reduce_fx=getattr(torch, reduction))
            function = reduce if with_function else None
            meta.sync = kinds._Sync(fn=function, _should=should, rank_zero_only=zero_only, _op=op)
            made = kinds._ResultMetric(meta, is_tensor)
            if not is_tensor:
                made.value = model.get_submodule(meta.metric_attribute)
            found[key] = made.to(model.device)


def _taken(one: Any) -> _Sum:
    own = vars(one)
    count = own.get(_COUNT)
    return None if count is None else count.clone(), tuple(own.get(name) for name in _OF_SUM)


class MetricObjects:
    """The metrics objects among the modules of a model."""

    def __init__(self, model: torch.nn.Module, kind: type) -> None:
        self._found = {name: module for name, module in model.named_modules() if isinstance(module, kind)}

    def take(self) -> dict[str, dict[str, Any]]:
        """Return the present states of the objects, by their names."""
        return {name: _states(one, _cloned) for name, one in self._found.items()}

    def put(self, taken: dict[str, dict[str, Any]]) -> None:
        """Set the objects back to these states."""
        for name, values in taken.items():
            vars(self._found[name]).update({key: _cloned(value) for key, value in values.items()})

    def encode(self) -> list[Any]:
        """Return this rank's own states of the objects."""
        return [[name, encode(_states(one, lambda value: value))] for name, one in self._found.items()]

    def decode(self, encoded: list[Any], device: torch.device) -> None:
        """Take over the states of this rank's former process."""
        for name, values in encoded:
            if name in self._found:
                vars(self._found[name]).update(decode(values, device))


def _states(one: Any, keep: Callable[[Any], Any]) -> dict[str, Any]:
    own = vars(one)
    return {name: keep(own[name]) for name in (*one._defaults, *_OF_METRIC) if name in own}


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


class Shown:
    """Values shown to loggers, progress bars and callbacks: `connector` is Lightning's.

    A tensor that is shown is never changed. It is read once: on an accelerator each read waits for the device.
    """

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._read: dict[int, tuple[Any, Any]] = {}

    def take(self) -> list[Any]:
        """Return the present values."""
        own = vars(self._connector)
        return [*(dict(own[name]) for name in _SHOWN), own["_current_fx"], own["_first_loop_iter"]]

    def put(self, taken: list[Any]) -> None:
        """Set the values back to these."""
        own = vars(self._connector)
        for name, values in zip(_SHOWN, taken, strict=False):
            own[name] = dict(values)
        own["_current_fx"], own["_first_loop_iter"] = taken[-2:]

    def encode(self) -> list[Any]:
        """Return this rank's own values."""
        own, known, read = vars(self._connector), self._read, {}
        found: list[Any] = []
        for name in _SHOWN:
            items = []
            for key, value in own[name].items():
                was = known.get(id(value))
                encoded = was[1] if was is not None and was[0] is value else encode(value)
                read[id(value)] = value, encoded
                items.append([key, encoded])
            found.append(["d", items])
        self._read = read
        return [*found, own["_current_fx"], own["_first_loop_iter"]]

    def decode(self, encoded: list[Any], device: torch.device) -> None:
        """Take over the values of this rank's former process."""
        self.put([*(decode(one, device) for one in encoded[:-2]), *encoded[-2:]])
