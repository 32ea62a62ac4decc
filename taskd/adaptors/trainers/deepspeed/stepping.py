"""`EngineStep`: an engine's step at an accumulation boundary, in the form of an optimizer for the training state.

Rules:

1. The state watches optimizers by their hooks. An engine's step is more than its optimizer's: norms come before it,
   gathered weights, schedules and counters after it. So the state gets an object for all of it.
2. The step starts with the basic optimizer's first change, and ends as `engine.step()` returns. Norms and overflow
   checks, in which ranks wait for one another, come before. A step interrupted there can be done again as it is.
3. A step that is left out for an overflow is a step too: it moves the loss scale.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

_log = logging.getLogger(__name__)


class EngineStep(torch.optim.Optimizer):
    """The optimizer of an engine's training state: its parameters are this rank's masters.

    Args:
        engine: its `step` is watched from now on.
        masters: the tensors that its basic optimizer steps.
    """

    def __init__(self, engine: Any, masters: list[torch.Tensor]) -> None:
        self._basic: torch.optim.Optimizer = engine.basic_optimizer
        super().__init__([{"params": masters}], {})
        self._engine = engine
        self._inside = self._begun = self._told = False
        self._groups: list[dict[str, Any]] = self._basic.param_groups
        self.committed = engine.global_steps
        """The engine's count of steps at the last commit."""
        self._basic.register_step_pre_hook(_calling(self))
        engine.step = self._watched(engine.step)

    @property
    def state(self) -> Any:
        """State of the basic optimizer."""
        return self._basic.state

    @state.setter
    def state(self, _value: Any) -> None:
        pass

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it has no closure's loss to return
        """Raise a `RuntimeError`."""
        raise RuntimeError("an EngineStep was stepped: it stands for engine.step(), which is to be called instead")

    @property
    def due(self) -> bool:
        """True if the engine has stepped since the last commit."""
        return bool(self._engine.global_steps != self.committed)

    def drop_step(self) -> None:
        """Drop the interrupted step, which may have ended between two groups of the basic optimizer."""
        self._inside = self._begun = False
        self._basic.param_groups = self._groups

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        engine = self._engine

        def watched(*args: Any, **options: Any) -> Any:
            if engine.managed_gradient_accumulation() and not engine.is_gradient_accumulation_boundary():
                return step(*args, **options)
            if self.due and not self._told:
                self._told = True
                _log.warning(
                    "engine.step() has changed the weights twice without a state.commit() between: at a fault both "
                    "steps are lost; call state.commit() after each engine.step()"
                )
            self._inside, self._groups = True, self._basic.param_groups
            result = step(*args, **options)
            self.begin()
            self._inside = self._begun = False
            for hook in [*self._optimizer_step_post_hooks.values()]:
                hook(self, (), {})
            return result

        return watched

    def begin(self) -> None:
        """Call the hooks before the first change of this step, unless they were called."""
        if self._inside and not self._begun:
            self._begun = True
            for hook in [*self._optimizer_step_pre_hooks.values()]:
                hook(self, (), {})


def _calling(step: EngineStep) -> Callable[..., None]:
    def before(*_: object) -> None:
        step.begin()

    return before
