"""The functions of torch.distributed whose results a script uses, and the arguments that hold these results.

They are wrapped, outermost call only: torch itself builds some on others (`all_gather_object` on `all_gather`).

`torch.compile` recognises them by identity. A table that was made meanwhile lists the wrapped functions. So torch's own
are added to it when they are put back.
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
"""Calls between two ranks, without `isend` and `irecv`: torch recognises these by their identity."""
_OF_PARTS: Final = "torch.distributed.tensor."
"""Module prefix of DTensors. If it was imported before, it has torch's own functions, so it never gets wrapped ones."""
_THROUGH: Final = ("torch.", "contextlib", "functools")
_libraries: dict[str, str] = {}
"""Package of each trainer whose own calls are left alone, and the module through which it communicates."""


def leave_alone(package: str, through: str) -> None:
    """Exclude what a package communicates for itself, by its module `through`: no script uses these results."""
    _libraries[package + "."] = through + "."


def _is_librarys(frame: FrameType | None) -> bool:
    """Return whether an excluded package has called its own module of communication, which calls torch."""
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
        """Argument that the call fills: a tensor, or a list of tensors or of objects; None if nothing is received."""
        return self.arguments.get(RESULTS.get(self.name, ""))

    @property
    def later(self) -> bool:
        """True if the result is there only after a wait."""
        return bool(self.arguments.get("async_op"))

    def signature(self) -> tuple[object, ...]:
        """Return the facts of the call that are the same in every process of a rank that runs the same set-up."""
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
"""Signature of one function, computed at its first call: a newcomer's start has no time for all of them."""
Handler = Callable[[Call], Steps]
"""Generator that receives a call, has it made, and returns the script's result."""


class Wrapped:
    """torch's functions while they are wrapped. A name that a script has bound meanwhile later calls torch directly."""

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
            except TypeError:  # torch's own error is clearer
                return (yield ORIGINAL)
            self._inside = True
            try:
                if librarys:
                    return (yield ORIGINAL)
                return (yield from handler(Call(name, given)))
            finally:
                self._inside = False

        return around(original, call)
