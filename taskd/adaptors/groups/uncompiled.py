"""Exclusion of our methods from `torch.compile`: torch's C++ calls them while every new frame is examined.

DDP's reducer calls its group's methods in the middle of a compiled model's backward pass. The methods of torch's own
groups have no frames. A handle's have. Compiling them fails from torch 2.13 on, where a process group is opaque.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from taskd.adaptors.seams.worker import SKIP


def leave_methods_uncompiled(kind: type) -> None:
    """Mark all of our methods and properties of a class as not to be compiled, where torch has such a mark."""
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if type(function) is FunctionType:
            leave_uncompiled(function)


def leave_uncompiled(function: Callable[..., Any]) -> None:
    """Mark a function as not to be compiled, where torch has such a mark."""
    SKIP.find().use(function.__code__)
