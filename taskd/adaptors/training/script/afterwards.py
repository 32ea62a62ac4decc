"""Work that a script does after certain commits, with all ranks together: evaluations, checkpoints.

Rules:

1. It runs inside `commit`, once the step is committed. If a rank dies in it, the step stays and the work is lost.
2. So all ranks do it again after each recovery to such a step, before the training function is called. The random
   numbers that it draws are then those of an undisturbed run, too.
3. Code in the loop behind the commit is not done again: see `behind`.
4. Afterwards models are in the mode (training or not) in which they were before, however the work ends.
"""

from collections.abc import Callable, Sequence

import torch

from taskd.adaptors.training.parts.modes import Evaluations, call_all
from taskd.errors import ConfigError

Work = Callable[[int], object]


class Afterwards:
    """Work of one training state that is done after its commits.

    Args:
        modules: the models whose mode is kept.
        evaluations: functions to call around the work.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], evaluations: Evaluations) -> None:
        self._modules, self._evaluations = modules, evaluations
        self._works: list[tuple[Work, int]] = []
        self.any = False
        """True if there is any work."""

    def add(self, work: Work, every: int) -> None:
        """Add work that is done after every `every` commits."""
        if not callable(work) or type(every) is not int or every < 1:
            raise ConfigError(
                f"after_commit got {work!r} and every={every!r}, expected a function of the step and a number from 1 on"
            )
        self._works.append((work, every))
        self.any = True

    def run(self, step: int) -> None:
        """Do the work that is due after this step."""
        for work, every in self._works:
            if step and step % every == 0:
                call_all(self._evaluations.begin)
                modes = [(module, module.training) for root in self._modules for module in root.modules()]
                try:
                    work(step)
                finally:
                    for module, mode in modes:
                        module.training = mode
                call_all(self._evaluations.end)
