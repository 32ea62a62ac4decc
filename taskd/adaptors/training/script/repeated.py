"""What a script repeats as a recovery brings it back into the midst of an epoch: its lines before the loop.

The training function is called again, and comes to the loop over the loader, which goes on within its pass. What the
script has done on the way it had done before, and the state of the last commit has it already: so it is undone there.

Rules:

1. Random numbers are put back to those with which the function was entered, if torch's generator has drawn nothing
   since it was seeded. Whoever draws otherwise may do that for a reason.
2. Attributes of modules, hyperparameters of optimizers and schedulers are put back to what they were as the epoch was
   entered, if the script's text was seen to change one of them there (a rate that is multiplied once an epoch). What
   the script sets before its loop over epochs stays.
3. That is done at the first loader that goes on, before a step is committed, in a loop over `state.epochs()`.
4. A process that has come past those lines, and is interrupted before it commits a step, has done them too early: it
   goes back to what was there as the loop of the epoch before ended.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from torch.optim.lr_scheduler import LRScheduler

from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.rng import RngCapture, is_just_seeded, mark_of

_PLAIN: Final = (bool, int, float, str, tuple, type(None))


class SmallValues(NamedTuple):
    """Values of a state that are no tensors, at one moment.

    Attributes:
        step: number of committed steps.
        attributes: of modules.
        groups: hyperparameters of optimizers.
        scheduled: states of schedulers.
    """

    step: int
    attributes: Mapping[tuple[str, str], bytes]
    groups: list[dict[str, Any]]
    scheduled: list[dict[str, Any]]


class RepeatedLines:
    """Those of one training function.

    Args:
        parts: of the state.
        step: returns the number of committed steps.
    """

    def __init__(self, parts: Parts, step: Callable[[], int]) -> None:
        self._parts, self._step = parts, step
        self._entered_at = -1
        self._generators = RngCapture()
        self._drawn: list[bytes] = []
        self._epoch: SmallValues | None = None
        self._ended: SmallValues | None = None
        parts.epochs.loop_ended.append(self._end_loop)
        parts.epochs.entered = self._enter_epoch

    def enter(self) -> None:
        """The training function is about to be entered again."""
        self._entered_at, self._epoch = self._step(), None
        self._generators = RngCapture()
        self._drawn = [bytes(one) for one in self._generators.capture()]
        self._parts.epochs.goes_on = self._go_on

    def rollback(self) -> None:
        """The state goes back to the last commit."""
        if self._ended is not None and self._ended.step == self._step():
            self._put(self._ended)

    # Inside.

    def _end_loop(self) -> None:
        if self._parts.epochs.repeats:
            self._ended = self._values()

    def _enter_epoch(self) -> None:
        if not self._parts.epochs.repeats:
            return
        if self._ended is None or self._ended.step != self._step():
            self._ended = self._values()
        if self._epoch is None:
            self._epoch = self._values()

    def _go_on(self) -> None:
        self._parts.epochs.goes_on = None
        if self._step() != self._entered_at:
            return
        if is_just_seeded() and self._generators.mark() != mark_of(self._drawn):
            self._generators.restore(self._drawn)
        if self._epoch is not None:
            self._put(self._epoch)

    def _values(self) -> SmallValues:
        groups = [{name: one for name, one in group.items() if type(one) in _PLAIN} for group in self._all_groups()]
        scheduled = [copy.deepcopy(one.state_dict()) for one in self._schedulers()]
        return SmallValues(self._step(), self._parts.plain.look(), groups, scheduled)

    def _put(self, values: SmallValues) -> None:
        self._parts.plain.bring_back(values.attributes)
        for scheduler, known in zip(self._schedulers(), values.scheduled, strict=False):
            scheduler.load_state_dict(copy.deepcopy(known))
        for group, own in zip(self._all_groups(), values.groups, strict=False):
            group.update(own)

    def _all_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._parts.optimizers for group in optimizer.param_groups]

    def _schedulers(self) -> list[LRScheduler]:
        return [part for part in self._parts.replicated.values() if isinstance(part, LRScheduler)]
