"""Parts of a position that pack themselves: in cold caches each byte that is written anew costs."""

from typing import Any


class PackedPosition:
    """A `data` part of a training state, to be derived from."""

    def pack(self) -> bytes:
        """Where it stands. The very object of the last call, if nothing has moved."""
        raise NotImplementedError

    def unpack(self, data: bytes) -> None:
        """Go back to that."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """As any part's."""
        return {"packed": self.pack()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As any part's."""
        self.unpack(state["packed"])
