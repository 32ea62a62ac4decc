"""Epochs of a loader's sampler: the epoch that a resumed pass is in, and the epoch of the next pass.

Rules:

1. Outside of `state.epochs()` a script that sets another epoch than the recorded one begins another pass.
2. Within `state.epochs()` the epoch is known. A script that sets another epoch may count the passes that it begins, as
   a wrapper with `set_epoch(self.calls)`. It counts them if the recorded epoch is the number of the pass or of
   `state.epochs()`, and the epoch that is set now is not the step. A recovery makes that count too large, or too small
   in a new process. The sampler then gets the recorded epoch, and each later epoch of that count gets the difference
   added.
3. `pass_numbers` restores a sampler that counts its epochs by itself.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from taskd.adaptors.training.data.pass_numbers import counts_epochs
from taskd.adaptors.training.data.passes import Pass

_log = logging.getLogger(__name__)


class SamplerEpochs:
    """Epochs of one loader's samplers.

    Args:
        name: name of the loader.
        samplers: returns its samplers, from the outermost inwards.
        step: returns the number of committed steps.
    """

    def __init__(self, name: str, samplers: Callable[[], Iterable[Any]], step: Callable[[], int]) -> None:
        self._name, self._samplers, self._step = name, samplers, step
        self._shift = self._counted = 0

    def of_next(self) -> int | None:
        """Return the epoch of a pass that begins, None without one. Set it in the sampler."""
        epoch = self._epoch
        if not self._shift or epoch is None:
            return epoch
        self._shift, self._counted = self._shift if epoch == self._counted + 1 else 0, epoch
        if self._shift:
            self._set(epoch + self._shift)
        return epoch + self._shift

    def is_in(self, resume: Pass) -> bool:
        """Return whether the script, which opens the loader, is in the epoch of the recorded pass."""
        begun, self._shift = self._epoch, 0
        if begun == resume.epoch or counts_epochs(resume.counted):
            return True
        if begun is None or resume.epoch is None:
            return False
        if resume.epoch in (resume.number, resume.loop) and resume.loop >= 0 and begun != self._step():
            self._shift, self._counted = resume.epoch - begun, begun
            return self._set(resume.epoch)
        if begun < resume.epoch:
            _log.warning(
                "%s stands in epoch %d, and the script begins epoch %d again: let it go on where the state stands, "
                "for epoch in state.epochs(…)",
                self._name,
                resume.epoch,
                begun,
            )
        return False

    # Inside.

    @property
    def _epoch(self) -> int | None:
        epochs = (getattr(sampler, "epoch", None) for sampler in self._samplers())
        return next((epoch for epoch in epochs if type(epoch) is int), None)

    def _set(self, epoch: int) -> bool:
        """Set the epoch of the first sampler that has one. Return whether the sampler now has it."""
        sampler = next(one for one in self._samplers() if type(getattr(one, "epoch", None)) is int)
        try:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            else:
                sampler.epoch = epoch
        except (AttributeError, TypeError) as error:
            _log.warning(
                "epoch %d of the sampler of %s cannot be set: %r; another pass begins", epoch, self._name, error
            )
            self._shift = 0
        return self._epoch == epoch
