"""`LibraryPart`: state of a trainer's library beside models and optimizers, as one replicated part.

A library's adapter makes one and gives it to the state among `replicated`. It supplies facts that torch does not have:
the ranks that hold the same state, the remains of an interrupted step, and the work that follows the optimizers.

Rules:

1. Its `state_dict()` is equal on all ranks of a replica set, and is requested only at commits and recoveries.
2. At a recovery every rank calls `drop_step` first. A rank that keeps its own state then calls `put_back`, or `follow`
   if the step counts that its optimizers have made. Once all ranks have their state they call `complete` together.
3. The default methods do nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any


class LibraryPart:
    """Base class of a part that a trainer's library adds to the state.

    Attributes:
        coordinates: position of this rank among ranks that hold other parts of the state, by the name of a dimension.
        alone: description of the state that this rank alone holds; "" for none.
        no_rows: reason why no world of fewer ranks can be made; "" if one can.
        refusal: reason why no new world can be made with the state of this library; "" if one can.
        remedy: remedy for the refusal.
        set_anew: names of attributes that the library sets on modules anew in each pass: they are not recorded.
    """

    coordinates: Mapping[str, int] = {}
    alone: str = ""
    no_rows: str = ""
    refusal: str = ""
    remedy: str = ""
    set_anew: Collection[str] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a new process is given."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state_dict` of another rank of the replica set."""

    def committed(self) -> None:
        """Record that a step is committed."""

    def settled(self) -> None:
        """Treat the present state as that of the committed step, whatever its origin."""

    def drop_step(self) -> None:
        """Drop all that belongs to the interrupted step alone: communication, counts, timers."""

    def put_back(self) -> None:
        """Restore the state of the commit: the step is done again."""

    def lags(self) -> bool:
        """Return whether the optimizers have stepped and it is unknown how this part follows them."""
        return False

    def follow(self) -> None:
        """Follow the optimizers: the step counts, and the script does not reach the rest of its code."""

    def complete(self) -> None:
        """Complete the state that is divided among ranks. Collective: all ranks hold the state of the same step.

        Raises:
            RuntimeError: a peer has died.
        """
