"""Training flags of a model, restored where a fault leaves it in an evaluation that is not done again.

Rules:

1. An evaluation that a fault interrupts has called `model.eval()`, and does not reach its `model.train()`.
2. The flags of all inner modules are recorded at the first training pass, and at the first one after an evaluation.
   Modules that the script has frozen therefore stay so. A step pays for one check of a flag.
3. A model that trains in evaluation mode, with gradients, is left as it is.
4. Gradients that an evaluation has disabled otherwise than by `with` are enabled again, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_Calls = list[Callable[[], None]]


@dataclass(frozen=True)
class Evaluations:
    """Functions to call around the evaluations of a state's modules.

    Attributes:
        begin: called before work behind a commit.
        passed: called after each forward pass that does not train.
        end: called after work behind a commit, and after the first training pass behind an evaluation.
    """

    begin: _Calls = field(default_factory=list)
    passed: _Calls = field(default_factory=list)
    end: _Calls = field(default_factory=list)


def call_all(calls: _Calls) -> None:
    """Call each function once. It may remove itself."""
    for call in tuple(calls):
        call()


class Mode:
    """Flags of one module and of all modules in it. Its passes are reported to `evaluations`."""

    def __init__(self, module: torch.nn.Module, evaluations: Evaluations) -> None:
        self._module, self._evaluations = module, evaluations
        self._flags: list[tuple[torch.nn.Module, bool]] = []
        self.trains_on = memoryview(bytearray(8)).cast("q")
        """One number, for the core too: not 0 while the module trains with the recorded flags and does nothing else."""

    def trains(self) -> None:
        """Record a training pass that follows a pass of another kind."""
        self._flags = [(module, module.training) for module in self._module.modules()]
        self.trains_on[0] = 1
        call_all(self._evaluations.end)

    def evaluates(self) -> None:
        """Record a pass that does not train."""
        self.trains_on[0] = 0
        call_all(self._evaluations.passed)
        if not self._module.training and torch.is_grad_enabled():
            self._flags = []

    def put_back(self) -> None:
        """Restore the training as before an evaluation, if the module is in one."""
        if not self._flags:
            return
        torch.set_grad_enabled(True)
        if not all(root.training for root in self._roots()):
            for module, flag in self._flags:
                module.training = flag

    def _roots(self) -> Iterator[torch.nn.Module]:
        """Yield the module, and those that DDP and the compiler wrap in it: a script may evaluate those instead."""
        root: Any = self._module
        while isinstance(root, torch.nn.Module):
            yield root
            root = root.module if isinstance(root, DistributedDataParallel) else getattr(root, "_orig_mod", None)
