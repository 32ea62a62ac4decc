"""Buffers and other values that a forward pass changes in the models although no optimizer has stepped.

Rules:

1. Buffers (BatchNorm's statistics) are copied before the first forward pass after a commit, and restored.
2. A parameter that no optimizer trains may change in the forward pass too: a key encoder that follows another one
   (MoCo). The first steps show which ones do, by their versions and some of their elements. A parameter that is changed
   through `.data`, or given other memory there, has no new version. From then on those are copied with the buffers.
   A parameter that a library gathers, or moves to a device, for the time of a pass (ZeRO-3, offloading) counts as
   unchanged.
3. Other attributes may change too (see `plain`): they are recorded and restored at the same moments.
4. In a step in which a parameter has changed for the first time nothing can be restored. The same holds for all steps
   if the forward pass runs inside the optimizer's step (closures): changes before the optimizer cannot be distinguished
   from later ones there.
"""

from collections.abc import Sequence
from typing import Final

import torch

from taskd.adaptors.training.parts.plain import Plain
from taskd.adaptors.training.sharding.own_state import own_state

_STEPS: Final = 3
"""Number of first steps that show which parameters change."""
_ELEMENTS: Final = 64
_Mark = tuple[int, torch.Size, torch.Tensor]
"""Version, shape and first elements of a parameter."""


class Buffers:
    """Copies of buffers, made before the first forward pass after a commit and restored where a step is done again.

    Args:
        modules: modules whose buffers they are.
        optimizers: parameters that these do not train may change in a forward pass.
        plain: the modules' other attributes.
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], plain: Plain
    ) -> None:
        self._modules = modules
        self._plain = plain
        self._live: list[torch.Tensor] | None = None
        self._saved: list[torch.Tensor] = []
        trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        others = [module for module in modules if own_state(module) is None]
        self._watched = [p for module in others for p in module.parameters() if id(p) not in trained]
        self._marks: list[_Mark] = []
        self._movers: list[torch.Tensor] = []
        self._grown = False
        self._steps_left = _STEPS
        self._quiet = 0
        self.touched = False
        """True if a forward pass may have changed them since the commit."""

    def begin(self) -> None:
        """Forget forward passes of the set-up, which belong to no step: the training function is entered."""
        self.touched = False
        self._plain.begin()

    def save(self, module: torch.nn.Module) -> bool:
        """Copy the buffers before a forward pass. Return whether there is anything to save."""
        if self.touched or not module.training:
            return True
        if self._live is None or self._grown:
            self._live, self._grown = self._all(), False
            self._saved = [torch.empty_like(buffer) for buffer in self._live]
        self._watch()
        if self._live:
            with torch.no_grad():
                torch._foreach_copy_(self._saved, self._live)
        if self._plain.watching:
            self._plain.save()
        self.touched = bool(self._live or self._watched or self._plain.watching)
        return self.touched

    def committed(self) -> None:
        """Record that a step is done."""
        if self.touched and self._plain.watching:
            self._plain.committed()
        self.touched = False

    def stepping(self) -> None:
        """Find parameters that have changed by now: they follow those that the optimizers are about to change."""
        if self._watched and self.touched:
            found = self._changed()
            self._movers += found
            self._grown = self._grown or bool(found)
            self._steps_left -= 1
            if not self._steps_left:
                self._watched, self._marks = [], []

    def covers(self, tensor: torch.Tensor) -> bool:
        """Return whether this tensor is restored."""
        return any(tensor is mover for mover in self._movers)

    def can_be_put_back(self) -> bool:
        """Return whether the buffers are still the tensors that were saved: a module may have replaced them."""
        if self.touched and self._changed():
            return False
        if self._live is None or (self._live and not self.touched):
            return True
        now = self._all()
        return len(now) == len(self._live) and all(a is b for a, b in zip(now, self._live, strict=True))

    def put_back(self) -> None:
        """Restore the buffers, and the modules' other attributes, to those of the commit."""
        if self.touched and self._live:
            with torch.no_grad():
                torch._foreach_copy_(self._live, self._saved)
        if self.touched:
            self._plain.put_back()
        self._plain.tell_late()
        self.touched = False

    def _watch(self) -> None:
        marks = [_marked(parameter) for parameter in self._watched]
        same = len(marks) == len(self._marks) and all(map(_is_same, marks, self._marks))
        self._quiet = self._quiet + 1 if same else 0
        if self._quiet == _STEPS:
            self._watched, marks = [], []
        self._marks = marks

    def _changed(self) -> list[torch.Tensor]:
        """Return the watched parameters that have changed since they were marked, and are not saved."""
        pairs = zip(self._watched, self._marks, strict=True)
        others = [(parameter, mark) for parameter, mark in pairs if not self.covers(parameter)]
        return [parameter for parameter, mark in others if not _is_same(_marked(parameter), mark)]

    def _all(self) -> list[torch.Tensor]:
        return [*(buffer for module in self._modules for buffer in module.buffers()), *self._movers]


def _marked(parameter: torch.Tensor) -> _Mark:
    try:
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        plain = type(own) is torch.Tensor and own.layout is torch.strided and own.device.type != "meta"
        if plain and own.untyped_storage().nbytes():  # FSDP2 frees the memory of gathered parameters
            elements = own.as_strided((min(own.numel(), _ELEMENTS),), (1,), own.storage_offset())
            return parameter._version, own.shape, elements.clone()
    except (RuntimeError, NotImplementedError, TypeError):  # a library's own kind, such as a quantized one
        pass
    return parameter._version, torch.Size(), torch.empty(0)


def _is_same(one: _Mark, other: _Mark) -> bool:
    if one[0] != other[0]:
        return False
    elsewhere = one[1] != other[1] or one[2].device != other[2].device
    return elsewhere or torch.equal(one[2], other[2])
