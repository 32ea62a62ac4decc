"""A copy of a part that has no tensors, made at each commit: a counter, or a scheduler of the user's own.

Rules:

1. The copy has the part's `state_dict()`, and the hyperparameters of the optimizers that the part holds. A scheduler
   may keep only constants of its own.
2. taskd's own parts, in trainers' states, are not copied: they keep the state of the last commit themselves.
3. A part that does not change in the first steps is copied no more, unless it holds an optimizer.
4. A part that is large, or has values other than numbers and texts, is copied no more either.
"""

from typing import Any, Final

import torch

from taskd.adaptors.training import tree

_MOST_BYTES: Final = 4096
SCHEDULED: Final = ("lr", "momentum", "betas", "weight_decay")
"""Hyperparameters of an optimizer's groups that schedulers change."""
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class PlainCopy:
    """Copy of one part.

    Attributes:
        known: whether there is a copy.
    """

    def __init__(self, part: Any) -> None:
        self._part = part
        values = vars(part).values() if hasattr(part, "__dict__") else ()
        self._optimizers = [one for one in values if isinstance(one, torch.optim.Optimizer)]
        self._content = b""
        methods = (getattr(part, "state_dict", None), getattr(part, "load_state_dict", None))
        others = isinstance(part, torch.amp.GradScaler) or type(part).__module__.startswith("taskd.")
        self.known = all(map(callable, methods)) and not others

    def take(self) -> bool:
        """Copy the present state. Return whether it differs from the copy before."""
        before = self._content
        if self.known:
            self._content = self._now()
        return self._content != before

    def end(self) -> None:
        """Make no more copies of a part that does not change, unless it holds an optimizer."""
        self.known = bool(self._optimizers) and self.known

    @property
    def differs(self) -> bool:
        """True if the part differs from its copy."""
        return self.known and self._now() != self._content

    def put_back(self) -> None:
        """Restore the part from its copy."""
        if self.known and self._content:
            state, values = tree.unpack(self._content)
            self._part.load_state_dict(state)
            for group, known in zip(self._groups(), values, strict=True):
                group.update(known)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _now(self) -> bytes:
        try:
            value = (
                self._part.state_dict(),
                [{k: group[k] for k in SCHEDULED if k in group} for group in self._groups()],
            )
            content = tree.pack(value) if _is_plain(value) else b""
        except Exception:  # noqa: BLE001 - code of the user's, which is called in a healthy step
            content = b""
        self.known = 0 < len(content) <= _MOST_BYTES
        return content


def _is_plain(value: Any) -> bool:
    """Return whether a value has only numbers and texts, at most `_MOST_BYTES` of them."""
    left, seen = [value], 0
    while left:
        one = left.pop()
        seen += 1
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif tree.is_container(one):
            left += one
        elif type(one) not in _PLAIN and not tree.is_numpy(one):
            return False
        if seen + len(left) > _MOST_BYTES:
            return False
    return True
