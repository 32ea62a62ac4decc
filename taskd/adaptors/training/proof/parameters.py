"""Watch over the parameters: whether they are those that the last step left, or an evaluation has replaced them.

An evaluation with averaged weights copies them into the model, and copies the trained ones back afterwards. A process
that a fault interrupts in between has no trained weights any more, although no optimizer has stepped.

Rules:

1. Some elements of the parameters are sampled: after the first pass of each evaluation, and after the first training
   pass behind it. A difference shows a change that no optimizer has made.
2. They are also sampled behind each early commit, as work behind a commit begins, and as an epoch's loop over its
   loader ends. So a fault in the very first evaluation is covered, too. If there is no sample from before the
   interrupted evaluation, the state counts as lost.
3. Scripts may evaluate through the module inside of DistributedDataParallel: its passes are watched here.
4. Where evaluations are known to change parameters, they are sampled behind each commit.
5. The loop waits for no result of an accelerator: a sample behind a commit is enqueued only.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.training.hooks import AfterPass
from taskd.adaptors.training.parts.modes import Evaluations, call_all
from taskd.adaptors.training.recovery import StateRecovery

logger = logging.getLogger(__name__)
_EARLY: Final = 64
"""Number of first commits of a process behind which it samples. A sample takes some 50 us."""
_MOST: Final = 32
"""Most parameters that are sampled."""
Seen = dict[tuple[torch.device, torch.dtype], torch.Tensor]


class ParameterWatch:
    """Watch for changes of the trained parameters that no optimizer makes.

    Args:
        recovery: recovery of the state.
        rank: this process's rank in the job, for the log.
    """

    def __init__(self, recovery: StateRecovery, rank: int) -> None:
        self._recovery, self._rank = recovery, rank
        self._commits = 0
        self._moves: bool | None = None
        """True if evaluations change parameters; None if that is not known."""
        self._left: tuple[int, Seen] | None = None
        """Number of a step, and a sample of the parameters that it left."""
        self._inside: tuple[int, Seen] | None = None
        """Number of a step, and a sample of the parameters in an evaluation behind it."""
        self._calls = (
            (recovery.parts.epochs.loop_ended, self._begins),
            (recovery.steps.evaluations.begin, self._begins),
            (recovery.steps.evaluations.passed, self._evaluated),
            (recovery.steps.evaluations.end, self._ends),
        )
        self._warned = -1
        for calls, call in self._calls:
            calls.append(call)
        evaluations = recovery.steps.evaluations
        wrappers = [one for one in recovery.parts.modules if isinstance(one, DistributedDataParallel)]
        self._inner = [AfterPass(one.module, _after_pass(one.module, evaluations)) for one in wrappers]
        recovery.parameters_moved = self._moved

    @property
    def owes(self) -> bool:
        """True if `committed` must be called at the next commit."""
        return bool(self._moves) or (self._moves is None and self._commits < _EARLY)

    def enter(self) -> None:
        """Sample the parameters before a call of the training function, with the state of a committed step."""
        self._left = self._inside = None
        if self._moves is not False:
            self._left = self._look()

    def committed(self) -> None:
        """Sample the parameters behind a commit, if that is due."""
        self._commits += 1
        if self.owes:
            self._left = self._look()

    def close(self) -> None:
        """Stop watching: the training function was left for good."""
        for calls, call in self._calls:
            if call in calls:
                calls.remove(call)
        for passes in self._inner:
            passes.remove()
        self._inner = []
        self._recovery.parameters_moved = lambda: False

    # Inside.

    def _begins(self) -> None:
        if self._moves is not False and not self._is_of_now(self._left):
            self._left = self._look()

    def _evaluated(self) -> None:
        if self._is_of_now(self._inside):
            return
        self._inside = self._look()
        if self._is_of_now(self._left) and self._differ(self._left, self._inside):
            self._tell()

    def _ends(self) -> None:
        if not self._is_of_now(self._inside):
            return
        now = self._look()
        if now is None:
            return
        if self._differ(self._inside, now):
            self._tell()
        elif self._moves is None:
            self._moves = False

    def _moved(self) -> bool:
        """Return whether the parameters differ from those of the last commit, as a fault interrupts the training."""
        if self._moves is False or any(self._recovery.steps.counts):
            return False
        if self._is_of_now(self._left):
            with self._apart():
                moved = self._differ(self._left, self._look())
        else:
            moved = self._is_of_now(self._inside)
        if moved and self._warned != self._recovery.step:
            self._warned = self._recovery.step
            logger.warning(
                "rank %d: an evaluation was interrupted, and the parameters are not known to be those of step %d: this "
                "process's state is not used",
                self._rank,
                self._recovery.step,
            )
        return moved

    def _tell(self) -> None:
        if self._moves:
            return
        self._moves = True
        copied = self._recovery.backups is not None
        lost = "all ranks go back to the newest copies" if copied else "all processes start anew"
        logger.warning(
            "%s: an evaluation with other parameters than the trained ones: at a fault in it %s, if all ranks evaluate "
            "so. At other moments the interrupted step alone is done again",
            script_line(),
            lost,
        )

    def _apart(self) -> AbstractContextManager[Any]:
        """Return a context that waits for nothing that the training has enqueued: after a fault it may never end."""
        device = next(iter(self._left[1]))[0] if self._left and self._left[1] else torch.device("cpu")
        if device.type == "cpu":
            return nullcontext()
        module = torch.get_device_module(device.type)
        stream: AbstractContextManager[Any] = module.stream(module.Stream(device))
        return stream

    def _is_of_now(self, seen: tuple[int, Seen] | None) -> bool:
        return seen is not None and seen[0] == self._recovery.step

    def _look(self) -> tuple[int, Seen] | None:
        """Return a sample of the present parameters; None behind an optimizer's step, and where they are unreadable."""
        if any(self._recovery.steps.counts):
            return None
        try:
            return self._recovery.step, _sample(self._recovery.parts.trained())
        except Exception:  # a failed sample must not end the training
            logger.info("the parameters could not be looked at", exc_info=True)
            self._moves = False
            self.close()
            return None

    def _differ(self, before: tuple[int, Seen] | None, after: tuple[int, Seen] | None) -> bool:
        if before is None or after is None:
            return False
        return before[1].keys() != after[1].keys() or any(
            not torch.equal(_bytes(before[1][key]), _bytes(after[1][key])) for key in before[1]
        )


def _after_pass(module: torch.nn.Module, evaluations: Evaluations) -> Callable[[], None]:
    evaluated = False

    def after() -> None:
        nonlocal evaluated
        if not module.training or not torch.is_grad_enabled():
            evaluated = True
            call_all(evaluations.passed)
        elif evaluated:
            evaluated = False
            call_all(evaluations.end)

    return after


def _sample(parameters: Sequence[torch.Tensor]) -> Seen:
    """Return one element of some of the parameters, those of one device and type together."""
    places = [getattr(one, "_local_tensor", one) for one in parameters[:: max(1, len(parameters) // _MOST)]]
    elements: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = defaultdict(list)
    with torch.no_grad():
        for place in places:
            if place.numel():
                at = tuple(size // 2 for size in place.shape)
                elements[place.device, place.dtype].append(place.detach()[at])
        return {key: torch.stack(found) for key, found in elements.items()}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().view(torch.uint8)
