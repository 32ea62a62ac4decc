"""What a script does after certain commits, with all ranks together: evaluations, checkpoints.

Rules:

1. It runs inside `commit`, when the step is committed. A rank may die in it: the step stays, and the work is lost.
2. So after each recovery to such a step it is done again, by all ranks, before the training function is called. The
   random numbers that it draws are then those of an undisturbed run, too.
3. What stands in the loop behind the commit is not: when that is interrupted, its line is told, by the lowest rank that
   was in it and lives. What only the dead one was in, while all others were in their next step, nobody can tell.
4. Models are in the mode (training or not) afterwards in which they were before, however it ends.
"""

import logging
from collections.abc import Callable, Sequence
from traceback import walk_tb
from types import CodeType
from typing import Final

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import innermost
from taskd.errors import ConfigError
from taskd.wire.messages import WorldPlan

logger = logging.getLogger(__name__)

Work = Callable[[int], object]


class Afterwards:
    """That of one training state.

    Args:
        modules: the models whose mode is kept.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
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
                modes = [(module, module.training) for root in self._modules for module in root.modules()]
                try:
                    work(step)
                finally:
                    for module, mode in modes:
                        module.training = mode


_STEPS: Final[tuple[CodeType, ...]] = (
    DistributedDataParallel.forward.__code__,
    torch.Tensor.backward.__code__,
    Afterwards.run.__code__,
)
"""What is done again: a step's own work, and what was given to the state."""


class BehindCommit:
    """What a fault has interrupted between a commit and the next step: it is not done again, and that is told."""

    def __init__(self) -> None:
        self._line = ""
        self._step = 0

    def note(self, error: BaseException, step: int, *, between: bool) -> None:
        """The training function was left by this error; `between` says that no work of the next step has ended."""
        frames = list(walk_tb(error.__traceback__))
        of_step = any(frame.f_code in _STEPS for frame, _ in frames)
        self._line, self._step = "" if of_step or not between else innermost(reversed(frames)), step

    def left_out(self, plan: WorldPlan) -> bool:
        """Whether training goes on behind that commit, without this."""
        return bool(self._line) and self._step == plan.target_step

    def tell(self, left_out: Sequence[bool], rank: int) -> None:
        """The first rank of the new world that has left something out says so."""
        if any(left_out) and list(left_out).index(True) == rank:
            logger.warning(
                "%s was interrupted between the commit of step %d and the next step's forward pass. What stands behind "
                "the commit is not done again, unless it is given to state.after_commit(…)",
                self._line,
                self._step,
            )
