"""Check that the first step after a restore is finite: else the restored state cannot be trusted.

Rules:

1. The step is checked only if the state came from a replica or a copy, and if the losses that the script gives to
   `commit` were finite before the fault. For a new process the losses of its donor count.
2. A gradient that is NaN or infinite is in the gradients of all replicas as the optimizers step, and in all their
   weights after that. So gradients are checked before the first optimizer steps, and the loss before its commit counts.
3. A step that is not finite is no step: this rank passes on nothing of the state that it was given, and its source is
   distrusted.
4. Both checks wait for the device, once for each restore. No other step does.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.training.sharding.shards import local
from taskd.errors import DistrustError


class FirstStep:
    """First-step check of one rank; `watch` arms it until the next commit.

    `withdraw` is called if an optimizer that has begun its step is kept from changing anything.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], withdraw: Callable[[], None]) -> None:
        self._optimizers = tuple(optimizers)
        self._withdraw = withdraw
        self._hooks: list[RemovableHandle] = []
        self._source = ""
        self._distrust: Callable[[], None] = lambda: None

    @property
    def watched(self) -> bool:
        """True if the next step is the first after a restore."""
        return bool(self._hooks)

    def watch(self, source: str, distrust: Callable[[], None]) -> None:
        """Arm the check after a restore. `distrust` is called if the first step is not finite.

        `source`: where this rank's state came from; "" if it kept its own while others were given theirs.
        """
        self.forget()
        self._source, self._distrust = source, distrust
        self._hooks = [optimizer.register_step_pre_hook(self._before_step()) for optimizer in self._optimizers]

    def forget(self) -> None:
        """Disarm the check: the step is committed, or another state comes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def judge(self, loss: float | torch.Tensor) -> None:
        """Check the loss of a step that is not committed yet. A rank that has kept its own state blames no source.

        Raises:
            DistrustError: the loss is not finite.
        """
        if not self._source or (isinstance(loss, torch.Tensor) and loss.numel() != 1):
            return  # `commit` reports a loss that is no number
        try:
            value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        except (TypeError, ValueError):
            return
        if not math.isfinite(value):
            self._refuse(f"loss is {value!r}")

    def _before_step(self) -> Callable[..., None]:
        """Return the hook as a plain function: an optimizer that has it can still be copied."""

        def look(optimizer: Any, *_: object) -> None:
            scaled = getattr(optimizer, "found_inf", None) is not None  # a GradScaler checks them within a fused step
            if self.watched and not scaled and not _finite(optimizer):
                self._withdraw()
                self._refuse("gradients are not finite")

        return look

    def _refuse(self, what: str) -> None:
        self.forget()
        self._distrust()
        came = f"the state that came from {self._source}" if self._source else "a state that other ranks were given"
        raise DistrustError(
            f"the {what} in the first step with {came}, and losses were finite before the fault: it is not trusted"
        )


def _finite(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all gradients are finite; one device at a time, so that each is waited for once."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided:
                own = local(gradient)
                by_device.setdefault(own.device, []).append(torch.isfinite(own).all())
    return all(bool(torch.stack(seen).all()) for seen in by_device.values())
