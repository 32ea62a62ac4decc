"""What a forward pass changes of the models although no optimizer has stepped: buffers, and parameters that follow.

Rules:

1. Buffers (BatchNorm's statistics) are copied before the first forward pass after a commit, and put back.
2. A parameter that no optimizer trains may change in the forward pass too: a key encoder that follows the other one
   (MoCo). Which do is seen in the first steps, from their versions and some of their elements: one that is changed
   through `.data`, or given other memory there, has no new version. From then on those are copied with the buffers.
   What a library gathers, or moves to a device, for the time of a pass (ZeRO-3, offloading) has not changed by that.
3. So may other attributes (see `plain`): they are put down and put back at the same moments.
4. In a step in which one has changed for the first time nothing can be put back. Nor, ever, where the forward pass runs
   inside the optimizer's step (closures): what follows the optimizer is not told from what precedes it there.
"""

from collections.abc import Sequence
from typing import Final

import torch

from taskd.adaptors.training.parts.plain import Plain
from taskd.adaptors.training.sharding.own_state import own_state

_STEPS: Final = 3
"""In so many it is found out which parameters change."""
_ELEMENTS: Final = 64
_Mark = tuple[int, torch.Size, torch.Tensor]
"""Version, shape and first elements of a parameter."""


class Buffers:
    """Copies them before the first forward pass after a commit, and puts them back.

    Args:
        modules: whose buffers they are.
        optimizers: what they do not train may change in a forward pass.
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
        """Whether a forward pass may have changed them since the commit."""

    def begin(self) -> None:
        """The training function is entered: passes of the set-up are no step's."""
        self.touched = False
        self._plain.begin()

    def save(self, module: torch.nn.Module) -> bool:
        """Before a forward pass; tells whether there is anything to save."""
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
        """A step is done."""
        if self.touched and self._plain.watching:
            self._plain.committed()
        self.touched = False

    def stepping(self) -> None:
        """The first optimizer of a step is about to change what it trains: what has changed by now follows it."""
        if self._watched and self.touched:
            found = self._changed()
            self._movers += found
            self._grown = self._grown or bool(found)
            self._steps_left -= 1
            if not self._steps_left:
                self._watched, self._marks = [], []

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is put back."""
        return any(tensor is mover for mover in self._movers)

    def can_be_put_back(self) -> bool:
        """Tell whether they are still the tensors that were saved; a module may have put others there."""
        if self.touched and self._changed():
            return False
        if self._live is None or (self._live and not self.touched):
            return True
        now = self._all()
        return len(now) == len(self._live) and all(a is b for a, b in zip(now, self._live, strict=True))

    def put_back(self) -> None:
        """Make them those of the commit."""
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
        """Which of the watched parameters have changed since they were looked at, and are not saved."""
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
        if plain and own.untyped_storage().nbytes():  # FSDP2 frees the memory of what it has gathered
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
