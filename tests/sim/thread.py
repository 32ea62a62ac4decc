"""Waits of the main thread of a simulated process."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from tests.sim.fabric import Group


@dataclass(frozen=True, slots=True)
class Meet:
    """Wait of a main thread for a collective."""

    group: Group
    key: object
    among: Iterable[int]
    payload: Any = None
    timeout_s: float = 0.0


class AwaitOrder:
    """Wait of a main thread for an order from the control thread."""


Wanted = float | Meet | AwaitOrder
Thread = Generator[Wanted, Any, None]
AWAIT_ORDER = AwaitOrder()


class Abandoned:
    """Order to a main thread that no manager recovers."""


ABANDONED = Abandoned()
