"""Parts of a position that encode themselves: in cold caches each byte that is written anew costs time."""

from typing import Any


class PackedPosition:
    """Base class of a training state's `data` part that encodes itself."""

    def pack(self) -> bytes:
        """Return the present place, encoded: the very object of the last call, if nothing has moved."""
        raise NotImplementedError

    def unpack(self, data: bytes) -> None:
        """Go back to a packed place."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the form of any other part's."""
        return {"packed": self.pack()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.unpack(state["packed"])
