"""Lets megatron-core 0.16.1, which is written for GPUs, run on a CPU, with the smallest necessary changes.

- It makes tensors with `device="cuda"` and reads the current device: both are the CPU.
- It identifies types of tensors by their names (`torch.cuda.FloatTensor`): a tensor's name has `cuda` in it here.
- Its loss scaler moves loaded values with `Tensor.cuda()`: they stay where they are.
- It waits for the device when stages have exchanged activations, and in its timers: there is none to wait for.
- Its tracker of random numbers swaps the states of a GPU's generator: here it swaps those of the CPU's, so that dropout
  within the parts of a layer draws as it does on a GPU. It warns of the CPU's state having changed: it has, here.
"""

import logging
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, _types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        if func is torch.Tensor.cuda:
            return args[0]
        made = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(made, str):
            return made.replace("torch.", "torch.cuda.")
        return made


def _current_device() -> Any:
    return "cpu"


def _synchronize(_device: Any = None) -> None:
    pass


def install():
    torch.cuda.current_device = _current_device
    torch.cuda.synchronize = _synchronize
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.manual_seed = torch.manual_seed
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
    OnCpu().__enter__()
