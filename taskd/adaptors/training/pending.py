"""Gradients that still accumulate at a commit: they are not part of the state, and a recovery would lose them.

Rules:

1. A commit is suspect if no optimizer has stepped and the gradients are finite. (A step that a gradient scaler skipped
   has gradients that are not finite.) Suspicion is no error, because the script may discard these gradients.
2. If a later backward pass adds to them, that is an error: the script accumulates over commits.
3. If every commit follows an optimizer's step, the check costs one read of a number.
"""

from collections.abc import Callable
from typing import Any

import torch

from taskd.adaptors.training.parts.parts import Parts
from taskd.errors import ConfigError


class Pending:
    """Detector of gradients that accumulate over commits, for one training state."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._trained = [
            p for optimizer in parts.optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        self._suspects: list[tuple[torch.nn.Parameter, torch.Tensor, int]] = []
        self._added = self._watches = False
        self.armed = False
        """True if the last commit is suspect."""

    def committed(self, step: int, *, stepped: bool) -> None:
        """Check a commit before which the first optimizer has not stepped, or that follows a suspect commit.

        `stepped`: whether any optimizer has stepped.

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
        """Forget the gradients, which were dropped, and what gradient scalers have recorded of them."""
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
        """Wrap a part's `zero_grad`: gradients that are set to zero in place count as discarded too."""
        zero: Callable[..., None] = part.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            self._added = self._added or (self.armed and self._have_grown())
            self._suspects = []
            zero(*args, **kwargs)

        part.zero_grad = zero_grad

    def _have_grown(self) -> bool:
        return any(p.grad is grad and grad._version > version for p, grad, version in self._suspects)
