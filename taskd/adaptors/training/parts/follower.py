"""One part that may follow the optimizers: whether it moves in a step, and when."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.training import tree
from taskd.adaptors.training.parts.plain_copy import PlainCopy

_TRIES: Final = 3
"""Number of first steps that show how a part changes."""
_SOME: Final = 64


class Follower:
    """Observed changes of one part."""

    def __init__(self, name: str, part: Any) -> None:
        self.name = name
        self.part = part
        self._moved = self._stood = 0
        self._by_content = False
        self._leads: bool | None = None
        self._trails = False
        self._version = -1
        self._content = torch.empty(0)
        self._looks = 0
        self._copy = PlainCopy(part)
        self.settle()

    def mark(self) -> None:
        """Count whether the part has changed in this step, which is committed."""
        tensor = self._tensor
        if tensor is None:
            self._mark_copy()
            return
        version = tensor._version
        if version != self._version:
            if self._moved + self._stood < _TRIES:
                self._content = _some(tensor)
            self._version = version
            self._moved += 1
        elif self._by_content or (self._moved + self._stood < _TRIES and not torch.equal(_some(tensor), self._content)):
            self._by_content, self._content = True, _some(tensor)  # a change through `.data` leaves the version
            self._moved += 1
        else:
            self._stood += 1

    def _mark_copy(self) -> None:
        if self._looks < _TRIES:
            self._looks += 1
            if _shown_by(self.part) is not None:
                self.settle(begun=1)
                return
        if self._copy.known:
            moved = self._copy.take()
            self._moved, self._stood = self._moved + moved, self._stood + (not moved)
            if self._stood >= _TRIES and not self._moved:
                self._copy.end()

    def settle(self, begun: int = 0) -> None:
        """Treat the present state as that of the last committed step. It has changed in `begun` steps before."""
        self._tensor = _shown_by(self.part)
        self._moved, self._stood = begun, 0
        self.refresh()

    def refresh(self) -> None:
        """Treat the present state as unchanged."""
        if self._tensor is not None:
            self._version, self._content = self._tensor._version, _some(self._tensor)
        else:
            self._copy.take()

    @property
    def tensor(self) -> torch.Tensor | None:
        """Tensor whose version shows whether the part has changed."""
        return self._tensor

    def stepping(self) -> None:
        """Record whether the part has moved before the first optimizer of a step, which is about to step."""
        moved = self._is_known and not self._stands
        if self._leads is None:
            self._leads = moved
        else:
            self._trails = self._trails or moved

    @property
    def leads(self) -> bool:
        """True if it moves before the optimizers, as far as is known."""
        return self._leads is not False

    @property
    def moves_often(self) -> bool:
        """True if it has moved in at least two steps."""
        return self._moved > 1

    @property
    def early(self) -> bool:
        """True if it moved before the optimizers and cannot be restored. Late moves of the last step are ignored."""
        scaler = isinstance(self.part, torch.amp.GradScaler)
        if self._tensor is None and scaler:
            made = _shown_by(self.part)
            return made is not None and made._version > 0  # it was made in its first step, and updated since
        if self._tensor is None:
            return False
        return not self._stands and (self._leads is not False or (scaler and not self._trails))

    @property
    def lags(self) -> bool:
        """True if it has moved in every step that was committed here, if any, but not in this one."""
        return self._stands and not self._stood

    @property
    def may_lag(self) -> bool:
        """True if it has moved in some steps, but not in this one."""
        return self._stands and self._moved > 0 and self._stood > 0

    @property
    def unknown(self) -> bool:
        """True if it has not moved, and no step was committed here to show whether it should."""
        return self._stands and not self._stood and not self._moved

    @property
    def never(self) -> bool:
        """True if it has not moved in this step, nor in any of the steps committed here, if there were some."""
        return self._stands and self._stood > 0 and not self._moved

    @property
    def has_moved(self) -> bool:
        """True if it differs from its state in the last committed step, or nothing is known of it."""
        return not self._stands

    def put_back(self) -> None:
        """Restore a part without tensors that has changed before the optimizers."""
        if self._tensor is None and self._leads is not False:
            self._copy.put_back()

    @property
    def _is_known(self) -> bool:
        return self._tensor is not None or self._copy.known

    @property
    def _stands(self) -> bool:
        if self._tensor is None:
            return self._copy.known and not self._copy.differs
        if self._tensor._version != self._version:
            return False
        return not self._by_content or torch.equal(_some(self._tensor), self._content)


def _some(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_SOME].clone()


def _shown_by(part: Any) -> torch.Tensor | None:
    """Return a tensor of a part that changes whenever the part does; None if there is none."""
    if isinstance(part, AveragedModel):
        return part.n_averaged
    if isinstance(part, torch.nn.Module):
        return next(part.parameters())
    if isinstance(part, torch.amp.GradScaler):
        return getattr(part, "_scale", None)  # one that is not enabled has none
    if not callable(getattr(part, "state_dict", None)):
        return None
    found = list(_tensors(part.state_dict()))
    return next((tensor for tensor in found if tensor.is_floating_point()), found[0] if found else None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree.fold(value, found.append)
    yield from found
