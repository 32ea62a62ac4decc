"""Parts whose state a trainer's adapter reads and loads, instead of their `state_dict`.

Rules:

1. A trainer may have objects that hold more than their `state_dict` contains, share their tensors, or must be brought
   back from within a step. The adapter that knows them registers an `OwnState` before the training state is made.
2. If a part is *divided*, each rank holds a share that no other rank has. It is copied, as all such parts are.
3. Values that are made of all ranks' shares together (gathered weights) are not part of the state: `complete` makes
   them.
"""

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch


class OwnState:
    """The state of one part, as an adapter reads and loads it. The defaults here do for most adapters.

    Attributes:
        rank, of: this rank has the `rank`-th of `of` shares; 0 of 1: all ranks have the same.
        attributes: names of attributes of a module and its children that the adapter restores itself.
        needs_all: the job cannot continue with fewer ranks.
        renews: other objects of the trainer that are brought back with it; they must not be refused.
    """

    rank, of, needs_all = 0, 1, False
    renews: tuple[object, ...] = ()
    attributes: frozenset[str] = frozenset()

    def state(self) -> Any:
        """Return a tree of plain values and tensors: the tensors themselves, not copies."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        """Load a result of `state` from a rank that has the same share."""
        raise NotImplementedError

    def mark(self) -> None:
        """Record the present values: a step is committed, or the training function is entered."""

    def drop_step(self) -> None:
        """Drop an interrupted step, unless it has run to its end."""

    def complete(self) -> None:
        """Make the values that come from all ranks' shares together. Collective, after all ranks have their shares.

        Raises:
            RuntimeError: a peer has died.
        """


_told: "WeakKeyDictionary[Any, ref[OwnState]]" = WeakKeyDictionary()


def tell(part: "torch.nn.Module | torch.optim.Optimizer", own: OwnState) -> None:
    """Register `own` as the state of this part, for as long as somebody (the training state) holds `own`."""
    _told[part] = ref(own)


def own_state(part: Any) -> OwnState | None:
    """Return the registered `OwnState` of a part, or None."""
    told = _told.get(part) if isinstance(part, torch.nn.Module | torch.optim.Optimizer) else None
    return None if told is None else told()


def is_divided(part: Any) -> bool:
    """Return whether a part is registered as divided: each rank has another share of it."""
    own = own_state(part)
    return own is not None and own.of > 1
