"""The code of a first training step, run in a template: newcomers find it warm, which saves 5 ms of CPU.

Rules:

1. The step uses only the CPU. It has no backward pass, because backward counts the devices, and after that no forked
   process can use them. An optimizer's step queries devices too, so it is omitted if torch was built for some.
2. Only warm code stays: a rank draws its random states anew, and the network is dropped.
3. Caches of torch that `init_process_group` clears are cleared here once. That takes 2 ms in each newcomer otherwise.
"""

import sys
import traceback
from typing import Final

import torch
from torch import nn

_PLATFORMS: Final = ("cuda", "hip", "xpu")
"""Attributes of `torch.version` that hold a version if torch was built for that platform."""


def run_step() -> None:
    """Make a network of a few weights and its optimizer, run it forward, and update its weights.

    Raises any error of a torch in which this does not work.
    """
    network = nn.Sequential(nn.Linear(4, 4, device="cpu"), nn.ReLU(), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(network.parameters())
    generator = torch.Generator("cpu").manual_seed(0)
    network(torch.randn(2, 4, generator=generator, device="cpu")).square().mean()
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if not hasattr(torch, "npu") and not any(getattr(torch.version, name, None) for name in _PLATFORMS):
        optimizer.step()
    optimizer.zero_grad()
    traceback.format_stack()  # as `torch.manual_seed` does
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()
