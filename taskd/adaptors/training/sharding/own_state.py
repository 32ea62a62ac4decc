"""Parts whose state is told and taken otherwise than by their `state_dict`: a trainer's adapter says how.

Rules:

1. A trainer may have objects that hold more than their `state_dict` tells, share their tensors, or must be brought back
   from within a step. The adapter that knows them tells so of the part before the training state is made.
2. Of a part that is *divided* each rank has what no other has. It has copies, as all such parts do.
3. What is made of all ranks' parts together (weights that are gathered) is no part of the state: `complete` makes it.
"""

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch


class OwnState:
    """That of one part. What an adapter does not need stays as it is here.

    Attributes:
        rank, of: this rank has the `rank`-th of so many parts; 0 of 1: all ranks have the same.
        attributes: of a module and its children, which the adapter puts back itself.
        needs_all: the job cannot go on with fewer ranks.
        renews: what else of the trainer's is brought back with it; nobody is to refuse that.
    """

    rank, of, needs_all = 0, 1, False
    renews: tuple[object, ...] = ()
    attributes: frozenset[str] = frozenset()

    def state(self) -> Any:
        """A tree of tensors and plain values: the tensors themselves."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        """Take what `state` has returned on a rank that has the same part."""
        raise NotImplementedError

    def mark(self) -> None:
        """A step is committed, or the training function is entered."""

    def drop_step(self) -> None:
        """Let go of a step that was interrupted, unless it has been done to its end."""

    def complete(self) -> None:
        """Make what all ranks' parts give together. Collective, after all ranks have theirs.

        Raises:
            RuntimeError: a peer has died.
        """


_told: "WeakKeyDictionary[Any, ref[OwnState]]" = WeakKeyDictionary()


def tell(part: "torch.nn.Module | torch.optim.Optimizer", own: OwnState) -> None:
    """The state of this part is told and taken by `own` for as long as somebody, the training state, holds that."""
    _told[part] = ref(own)


def own_state(part: Any) -> OwnState | None:
    """That of a part, if one was told of."""
    told = _told.get(part) if isinstance(part, torch.nn.Module | torch.optim.Optimizer) else None
    return None if told is None else told()


def is_divided(part: Any) -> bool:
    """Whether each rank is told to have another part of it."""
    own = own_state(part)
    return own is not None and own.of > 1
