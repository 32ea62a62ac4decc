"""The living objects of some kinds in this process, whoever holds them, and kinds that may be missing.

Rules:

1. Nothing here depends on the size of the user's heap: each object of a known kind is recorded weakly as it is made.
2. `__new__` records it. So a copy and an unpickled object are recorded too. No frame of taskd stands around a
   constructor, so its warnings keep their line.
3. A kind is watched from the end of its module's first import on. No module is imported for it.
4. A process without taskd watches nothing. There a search finds the objects, once, as the training starts.
"""

import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from taskd.adaptors.torchrun.imports import after_import

WATCHED: Final = (
    ("torch.optim.optimizer", "Optimizer"),
    ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.optim.swa_utils", "AveragedModel"),
    ("torch.amp.grad_scaler", "GradScaler"),
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch._dynamo.eval_frame", "OptimizedModule"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase"),
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ("torch.distributed.algorithms.model_averaging.averagers", "ModelAverager"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine"),
)
"""Module and class of each kind that `instances` may be called with."""

_made: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
"""Objects by number: an object may have no hash before its constructor has run."""
_numbers = itertools.count()
_watching = False


def watch() -> None:
    """Record every object of the watched kinds from now on. Later calls in the same process change nothing."""
    global _watching  # noqa: PLW0603 - one per process
    if not _watching:
        _watching = True
        for module, name in WATCHED:
            after_import(module, functools.partial(_record, name))


def instances(*kinds: type) -> list[Any]:
    """Return the living objects of these watched kinds, subclasses' too, in the order of their making.

    An object is recognised by its type: a proxy that poses as an instance is left alone.
    """
    everything = list(_made.values()) if _watching else gc.get_objects()
    wanted = {kind for kind in set(map(type, everything)) if issubclass(kind, kinds)}
    return [one for one in everything if type(one) in wanted]


def imported(module: str, name: str) -> type | None:
    """Return the class `name` of a module, None unless the module is imported already.

    Nothing is imported to recognise an object.
    """
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _record(name: str, module: ModuleType) -> None:
    """Make the class of this name record each of its new objects."""
    kind: Any = getattr(module, name, None)
    if not isinstance(kind, type):
        return
    fields: dict[str, Any] = dict(vars(kind))
    own, constructor = fields.get("__new__"), getattr(kind, "__init__")  # noqa: B009  # unsound to mypy

    @functools.wraps(constructor)  # `inspect.signature` of the class goes on to show its constructor's
    def make(cls: type[Any], *args: Any, **options: Any) -> Any:
        new = own.__get__(None, cls) if own is not None else _next_new(kind, cls)
        one = new(cls) if new is object.__new__ else new(cls, *args, **options)
        _made[next(_numbers)] = one
        return one

    setattr(kind, "__new__", staticmethod(make))  # noqa: B010  # refused by mypy as an assignment


def _next_new(kind: Any, cls: type) -> Callable[..., Any]:
    """Return the `__new__` that comes after that of `kind` for an object of `cls`."""
    found: Callable[..., Any] = super(kind, cls).__new__
    return found
