"""Interface of the fuzz of messages to the side under test."""

from collections import Counter
from typing import Protocol


class Side(Protocol):
    """A live manager or a live agent, and the peer that sends anything to it."""

    def send(self, count: int) -> None:
        """Send so many messages."""
        ...

    def check(self) -> list[str]:
        """Return the defects of the other side, which has to give a sign of life."""
        ...

    def refused(self) -> Counter[str]:
        """Return counts of refusals by reason."""
        ...

    def close(self) -> None:
        """End both sides."""
        ...
