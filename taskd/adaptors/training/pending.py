"""Gradients that are still being summed when a step is committed: they are no part of the state, and would be lost.

Rules:

1. A commit without an optimizer's step, with finite gradients there, is suspected. (A step that a gradient scaler left
   out has gradients that are not finite.) Suspicion is no error: the script may throw these gradients away.
2. It is an error when a later backward adds to them: the script accumulates over commits.
3. Where every commit follows an optimizer's step, this costs one look at a number.
"""

from collections.abc import Callable
from typing import Any

import torch

from taskd.adaptors.training.parts.parts import Parts
from taskd.errors import ConfigError


class Pending:
    """Watches the gradients of one training state."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._trained = [
            p for optimizer in parts.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        self._suspects: list[tuple[torch.nn.Parameter, torch.Tensor, int]] = []
        self._added = self._watches = False
        self.armed = False
        """Whether the last commit is suspected."""

    def committed(self, step: int, *, stepped: bool) -> None:
        """Called at each commit that is suspected, or that follows one which is.

        Raises:
            ConfigError: the script accumulates gradients over commits.
        """
        if self.armed and (self._added or self._have_grown()):
            raise ConfigError(
                f"commit() was called for step {step - 1} while gradients were still being accumulated: a recovery "
                "would lose them; call state.commit() only after optimizer.step(), once for all its micro-batches"
            )
        self.armed = self._added = False
        if not stepped:
            self._suspect()

    def forget(self) -> None:
        """The gradients were dropped: what a scaler has done with them counts no more either."""
        self.armed, self._suspects = False, []
        for part in self._parts.replicated.values():
            if isinstance(part, torch.amp.GradScaler) and part.is_enabled():
                part._per_optimizer_states.clear()

    def _suspect(self) -> None:
        found = [(p, p.grad) for p in self._trained if p.grad is not None]
        if not found or not all(bool(torch.isfinite(grad).all()) for _, grad in found):
            return
        if not any(bool(grad.any()) for _, grad in found):
            return
        self._suspects = [(p, grad, grad._version) for p, grad in found]
        self.armed = True
        if not self._watches:
            self._watches = True
            for part in (*self._parts.optimizers, *self._parts.modules):
                self._watch(part)

    def _watch(self, part: Any) -> None:
        """Gradients may also be set to zero in place, which counts for thrown away."""
        zero: Callable[..., None] = part.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            self._added = self._added or (self.armed and self._have_grown())
            self._suspects = []
            zero(*args, **kwargs)

        part.zero_grad = zero_grad

    def _have_grown(self) -> bool:
        return any(p.grad is grad and grad._version > version for p, grad, version in self._suspects)
