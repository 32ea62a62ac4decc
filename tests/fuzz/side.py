"""What the fuzz of messages asks of the side that it talks to."""

from collections import Counter
from typing import Protocol


class Side(Protocol):
    """A live manager, or a live agent, and the peer that says anything to it."""

    def send(self, count: int) -> None:
        """Say so many things."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the other side; it is asked for a sign of life."""
        ...

    def refused(self) -> Counter[str]:
        """By reason, what was refused."""
        ...

    def close(self) -> None:
        """End it all."""
        ...
