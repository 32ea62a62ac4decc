"""The buffers of the models (BatchNorm's statistics), which a forward pass changes although the weights stay."""

from collections.abc import Sequence

import torch


class Buffers:
    """Copies them before the first forward pass after a commit, and puts them back.

    Args:
        modules: whose buffers they are.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self._live: list[torch.Tensor] | None = None
        self._saved: list[torch.Tensor] = []
        self.touched = False
        """Whether a forward pass may have changed them since the commit."""

    def save(self, module: torch.nn.Module) -> bool:
        """Before a forward pass; tells whether there are buffers at all."""
        if self.touched or not module.training:
            return True
        if self._live is None:
            self._live = self._all()
            self._saved = [torch.empty_like(buffer) for buffer in self._live]
        if self._live:
            with torch.no_grad():
                torch._foreach_copy_(self._saved, self._live)
            self.touched = True
        return bool(self._live)

    def can_be_put_back(self) -> bool:
        """Tell whether they are still the tensors that were saved; a module may have put others there."""
        if self._live is None or (self._live and not self.touched):
            return True
        now = self._all()
        return len(now) == len(self._live) and all(a is b for a, b in zip(now, self._live, strict=True))

    def put_back(self) -> None:
        """Make them those of the commit."""
        if self.touched and self._live:
            with torch.no_grad():
                torch._foreach_copy_(self._live, self._saved)
        self.touched = False

    def _all(self) -> list[torch.Tensor]:
        return [buffer for module in self._modules for buffer in module.buffers()]
