"""`batch_isend_irecv` batches sends and receives only in a group of torch's own class, which a handle is not.

Without this module NCCL would do them one after the other, and two ranks that both send first would deadlock.
(Never run on a device by this project's tests.)
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.handle import GroupHandle
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, original_of


def send_batches_to_inner() -> None:
    """Give torch the inner groups during each `batch_isend_irecv`. Later calls of this function change nothing."""
    torchs: Callable[..., Any] = c10d.batch_isend_irecv
    if original_of(torchs) is not None:
        return

    def to_inner(p2p_op_list: Any) -> Steps:
        operations = p2p_op_list if isinstance(p2p_op_list, list) else []
        held = [(one, one.group) for one in operations if isinstance(getattr(one, "group", None), GroupHandle)]
        try:
            for operation, handle in held:
                operation.group = handle.inner()
            return (yield ORIGINAL)
        finally:
            for operation, handle in held:
                operation.group = handle

    batch_isend_irecv = around(torchs, to_inner)
    for module in (c10d, dist):
        vars(module)["batch_isend_irecv"] = batch_isend_irecv
