"""The functions of torch.distributed whose results a script uses: by which arguments they give them.

They are wrapped, outermost call only: torch itself makes one of another (`all_gather_object` of `all_gather`).

`torch.compile` knows them by identity: what was imported meanwhile has listed the wrapped ones, and is told of torch's
own when these are put back.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, caller

RESULTS: Final = {
    "broadcast": "tensor",
    "all_reduce": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "gather": "gather_list",
    "scatter": "tensor",
    "broadcast_object_list": "object_list",
    "all_gather_object": "object_list",
    "gather_object": "object_gather_list",
    "scatter_object_list": "scatter_object_output_list",
}
POINT_TO_POINT: Final = ("send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list")
"""Not `isend` and `irecv`, by whose identity torch knows them."""
_OF_PARTS: Final = "torch.distributed.tensor."
"""What this makes are DTensors. It has torch's own functions if it was imported before, so it never gets others."""
_THROUGH: Final = ("torch.", "contextlib", "functools")
_libraries: dict[str, str] = {}
"""A trainer's package, and its module through which it communicates, for those whose own calls are left alone."""


def leave_alone(package: str, through: str) -> None:
    """What this package communicates for itself, by its module `through`, is no result that a script uses."""
    _libraries[package + "."] = through + "."


def _is_librarys(frame: FrameType | None) -> bool:
    """Whether a package that is left alone has called its own module of communication, which calls torch."""
    for package, through in _libraries.items():
        frame = _above(frame, _THROUGH)
        if frame is not None and _module(frame).startswith(through):
            frame = _above(frame, (through, *_THROUGH))
            return frame is not None and _module(frame).startswith(package)
    return False


def _above(frame: FrameType | None, modules: tuple[str, ...]) -> FrameType | None:
    while frame is not None and _module(frame).startswith(modules):
        frame = frame.f_back
    return frame


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")) + "."


@dataclass(frozen=True)
class Call:
    """One call of such a function."""

    name: str
    arguments: dict[str, Any]

    @property
    def result(self) -> Any:
        """What it fills: a tensor, or a list of tensors or of objects; None for who receives nothing."""
        return self.arguments.get(RESULTS.get(self.name, ""))

    @property
    def later(self) -> bool:
        """Whether the result is there only when somebody has waited for it."""
        return bool(self.arguments.get("async_op"))

    def signature(self) -> tuple[object, ...]:
        """What is the same in every process of a rank that runs the same set-up."""
        ends = tuple(self.arguments.get(name) for name in ("src", "dst", "group_src", "group_dst"))
        group = getattr(self.arguments.get("group"), "group_name", None)
        return (self.name, _shape(self.result), ends, None if group is None else str(group))


def _shape(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape))
    if isinstance(value, list):
        return tuple(_shape(item) if isinstance(item, torch.Tensor) else "object" for item in value)
    return None


_signature = cache(inspect.signature)
"""Asked at a call: a newcomer's start has no time for those of all functions."""
Handler = Callable[[Call], Steps]
"""Given a call, has it made, and returns what the script gets."""


class Wrapped:
    """torch's functions while they are wrapped. A name that a script has bound meanwhile goes straight on later."""

    def __init__(self, handler: Handler) -> None:
        self._handler: Handler | None = handler
        self._thread = threading.get_ident()
        self._inside = False
        self._originals: dict[str, Callable[..., Any]] = {}
        for name in (*RESULTS, *POINT_TO_POINT):
            original = getattr(c10d, name, None)
            if original is not None:
                self._originals[name] = original
                self._assign(name, self._wrap(name, original))

    def remove(self) -> None:
        """Put torch's own functions back."""
        self._handler = None
        functional = sys.modules.get("torch.distributed._functional_collectives")
        traceable: dict[Any, Any] = getattr(functional, "traceable_collective_remaps", {})
        for name, original in self._originals.items():
            wrapped = getattr(c10d, name)
            if wrapped in traceable:
                traceable.setdefault(original, traceable[wrapped])
            self._assign(name, original)

    @staticmethod
    def _assign(name: str, function: Callable[..., Any]) -> None:
        for module in (c10d, dist):
            if hasattr(module, name):
                setattr(module, name, function)

    def _wrap(self, name: str, original: Callable[..., Any]) -> Any:
        def call(*args: Any, **options: Any) -> Steps:
            handler, frame = self._handler, caller()
            if handler is None or self._inside or threading.get_ident() != self._thread:
                return (yield ORIGINAL)
            if torch.compiler.is_compiling() or _module(frame).startswith(_OF_PARTS):
                return (yield ORIGINAL)
            librarys = _is_librarys(frame)
            try:
                given = {} if librarys else _signature(original).bind(*args, **options).arguments
            except TypeError:  # torch says it better
                return (yield ORIGINAL)
            self._inside = True
            try:
                if librarys:
                    return (yield ORIGINAL)
                return (yield from handler(Call(name, given)))
            finally:
                self._inside = False

        return around(original, call)
