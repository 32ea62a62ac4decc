"""Methods of ours that torch's C++ calls while `torch.compile` looks at every new frame: they are not compiled.

DDP's reducer calls its group's methods in the middle of a compiled model's backward pass. Those of torch's own groups
have no frames. A handle's have, and compiling them fails from torch 2.13 on, where a process group is opaque.
"""

from types import FunctionType

import torch


def leave_uncompiled(kind: type) -> None:
    """Mark all methods and properties of a class. Where a torch has no such mark, it compiles them."""
    native = torch._C._dynamo.eval_frame  # no import of torch._dynamo, which takes a second
    put = getattr(native, "set_code_exec_strategy", None)
    if put is None:
        return
    skipped = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.SKIP)
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            put(function.__code__, skipped)
