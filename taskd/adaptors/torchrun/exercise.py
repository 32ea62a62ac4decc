"""The code of a first training step, run in a template, so that a newcomer finds it warm: it saves 5 ms of CPU.

Rules:

1. Only the CPU is used. Backward is left out: it counts the devices, and a process that has done so cannot fork one
   that uses them. An optimizer's step asks for devices too: it is left out where torch was built for some.
2. Nothing of it stays but warm code: a rank draws its random states anew, and the network goes.
3. Caches of torch that `init_process_group` clears are cleared here once. In each newcomer that takes 2 ms.
"""

import sys
import traceback
from typing import Final

import torch
from torch import nn

_PLATFORMS: Final = ("cuda", "hip", "xpu")
"""Of which `torch.version` has a version where torch was built for one."""


def run_step() -> None:
    """Make a network of a few weights and its optimizer, run it forward, and update its weights.

    Raises whatever a torch raises in which that does not work.
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
