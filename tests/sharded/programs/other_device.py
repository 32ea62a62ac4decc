"""A CPU as an accelerator: torch then makes meshes by `split_group`, as with NCCL, of gloo's groups.

A default group can only be bound to a device that is not a CPU when it is made, so it is bound afterwards. gloo lacks
two parts of splitting, which are added: options that can be copied, and the part of a rank that is in no group of it.
"""

import copy
from typing import Any

import torch
import torch.distributed as dist

CPU = torch.device("cpu", 0)


def init() -> None:
    """Make the default group, and bind it."""
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.current_accelerator = lambda check_available=False: CPU
    gloo: Any = dist.ProcessGroupGloo
    copies: Any = copy._deepcopy_dispatch  # type: ignore[attr-defined]
    copies[gloo._Options] = lambda options, _memo: options
    gloo.perform_nocolor_split = lambda _backend, _device: None
    dist.init_process_group("cpu:gloo")
    everyone: Any = dist.group.WORLD
    everyone.bound_device_id = CPU
