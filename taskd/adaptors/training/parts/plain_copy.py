"""A copy of a part that has no tensors, made at each commit: a counter, or a scheduler of the user's own.

Rules:

1. It has the part's `state_dict()`, and the hyperparameters of the optimizers that the part holds: a scheduler may keep
   nothing of its own but constants.
2. taskd's own parts, which trainers' states have, keep what there was at the last commit by themselves.
3. One that stands in the first steps is asked no more, unless it holds an optimizer: it moves behind epochs, if at all.
4. A part that is large, or has anything but numbers and texts, has no copy from then on, and nothing is known of it.
"""

from typing import Any, Final

import torch

from taskd.adaptors.training import tree

_MOST_BYTES: Final = 4096
_NAMES: Final = ("lr", "momentum", "betas", "weight_decay")
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class PlainCopy:
    """That of one part.

    Attributes:
        known: whether there is one.
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
        """Copy what is there now; return whether that differs from the copy before."""
        before = self._content
        if self.known:
            self._content = self._now()
        return self._content != before

    def end(self) -> None:
        """The part has not moved in some steps: ask it no more."""
        self.known = bool(self._optimizers) and self.known

    @property
    def differs(self) -> bool:
        """Whether the part is not as its copy."""
        return self.known and self._now() != self._content

    def put_back(self) -> None:
        """Make the part as its copy."""
        if self.known and self._content:
            state, values = tree.unpack(self._content)
            self._part.load_state_dict(state)
            groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
            for group, known in zip(groups, values, strict=True):
                group.update(known)

    def _now(self) -> bytes:
        content = b""
        try:
            groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
            value = self._part.state_dict(), [{k: group[k] for k in _NAMES if k in group} for group in groups]
            if _is_plain(value):
                content = tree.pack(value)
        except Exception:  # noqa: BLE001 - code of the user's, which is called in a healthy step
            content = b""
        self.known = 0 < len(content) <= _MOST_BYTES
        return content


def _is_plain(value: Any) -> bool:
    """Whether it has numbers and texts alone, and is no larger than `_MOST_BYTES` by far."""
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
