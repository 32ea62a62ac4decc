"""What the main thread of a simulated process can wait for."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from tests.sim.fabric import Group


@dataclass(frozen=True, slots=True)
class Meet:
    """What a main thread waits for: a collective."""

    group: Group
    key: object
    among: Iterable[int]
    payload: Any = None
    timeout_s: float = 0.0


class AwaitOrder:
    """What a main thread waits for: the control thread's word."""


Wanted = float | Meet | AwaitOrder
Thread = Generator[Wanted, Any, None]
AWAIT_ORDER = AwaitOrder()


class Abandoned:
    """The control thread's word to a main thread that nobody recovers."""


ABANDONED = Abandoned()
