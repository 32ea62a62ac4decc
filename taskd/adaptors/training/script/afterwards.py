"""What a script does after certain commits, with all ranks together: evaluations, checkpoints.

Rules:

1. It runs inside `commit`, when the step is committed. A rank may die in it: the step stays, and the work is lost.
2. So after each recovery to such a step it is done again, by all ranks, before the training function is called. The
   random numbers that it draws are then those of an undisturbed run, too.
3. What stands in the loop behind the commit is not: see `behind`.
4. Models are in the mode (training or not) afterwards in which they were before, however it ends.
"""

from collections.abc import Callable, Sequence

import torch

from taskd.adaptors.training.parts.modes import Evaluations, call_all
from taskd.errors import ConfigError

Work = Callable[[int], object]


class Afterwards:
    """That of one training state.

    Args:
        modules: the models whose mode is kept.
        evaluations: what to call around the work.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], evaluations: Evaluations) -> None:
        self._modules, self._evaluations = modules, evaluations
        self._works: list[tuple[Work, int]] = []
        self.any = False
        """Whether there is any."""

    def add(self, work: Work, every: int) -> None:
        """To be done after every so many commits."""
        if not callable(work) or type(every) is not int or every < 1:
            raise ConfigError(
                f"after_commit got {work!r} and every={every!r}, expected a function of the step and a number from 1 on"
            )
        self._works.append((work, every))
        self.any = True

    def run(self, step: int) -> None:
        """Do what is due after this step."""
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
