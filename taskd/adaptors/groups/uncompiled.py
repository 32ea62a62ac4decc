"""Methods of ours that torch's C++ calls while `torch.compile` looks at every new frame: they are not compiled.

DDP's reducer calls its group's methods in the middle of a compiled model's backward pass. Those of torch's own groups
have no frames. A handle's have, and compiling them fails from torch 2.13 on, where a process group is opaque.
"""

from types import FunctionType

from taskd.adaptors.seams.worker import SKIP


def leave_uncompiled(kind: type) -> None:
    """Mark all methods and properties of a class, where torch has such a mark."""
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            SKIP.find().use(function.__code__)
