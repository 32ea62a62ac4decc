"""`LibraryPart`: what a trainer's library holds beside models and optimizers, as one replicated part that knows a step.

An adapter of a library makes one and gives it to the state among `replicated`. It tells what torch does not know: which
ranks hold the same, what a step that was interrupted leaves behind, and what follows the optimizers.

Rules:

1. Its `state_dict()` is equal on all ranks of a replica set, and is asked at commits and recoveries alone.
2. At a recovery every rank calls `drop_step` first. Then a rank that keeps its own state calls `put_back`, or `follow`
   if the step counts that its optimizers have made. When all ranks have their state they call `complete` together.
3. The defaults do nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any


class LibraryPart:
    """To be derived from.

    Attributes:
        coordinates: where this rank stands among ranks that hold other parts of the state, by the name of a dimension.
        alone: what this rank holds and no other, in words; "" for nothing.
        no_rows: why no world of fewer ranks can be made, in words; "" if that is not so.
        refusal: why no new world can be made with what this library holds, in words; "" if one can.
        remedy: how to mend that.
        set_anew: names of attributes that the library sets on modules anew in each pass: nothing is to be kept of them.
    """

    coordinates: Mapping[str, int] = {}
    alone: str = ""
    no_rows: str = ""
    refusal: str = ""
    remedy: str = ""
    set_anew: Collection[str] = ()

    def state_dict(self) -> dict[str, Any]:
        """What a new process is given."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave on another rank of the replica set."""

    def committed(self) -> None:
        """A step is committed."""

    def settled(self) -> None:
        """What is there now is that of the committed step, however it came to be."""

    def drop_step(self) -> None:
        """Let go of what belongs to the step that was interrupted alone: communication, counts, timers."""

    def put_back(self) -> None:
        """Make it what it was at the commit: the step is done again."""

    def lags(self) -> bool:
        """Whether the optimizers have stepped, and it cannot be told how this follows them."""
        return False

    def follow(self) -> None:
        """Follow the optimizers: the step counts, and the script does not come to what is left of it."""

    def complete(self) -> None:
        """Make whole what is divided among ranks. Collective; the state is that of the same step on all ranks.

        Raises:
            RuntimeError: a peer has died.
        """
