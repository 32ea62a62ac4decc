"""A delay for `latest`, by which DeepSpeed finds a checkpoint: it names one only when all ranks have written theirs.

DeepSpeed's rank 0 writes it as soon as its own files are written. A rank that is killed in writing would leave it with
the name of a checkpoint that is not whole, until the ranks save again.
"""

from importlib import import_module
from typing import Any

import torch.distributed as dist


def write_latest_last(engine: Any) -> None:
    """Make ranks meet before rank 0 writes it, from now on. Engines that write beside the training stay as they are."""
    writer = engine.checkpoint_engine
    kind = import_module("deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine").TorchCheckpointEngine
    if type(writer) is not kind:
        return
    commit = writer.commit

    def committed(info: Any) -> Any:
        dist.barrier()
        return commit(info)

    writer.commit = committed
