"""Form of every transition table: a pair of state and event leads to one row.

Rules:

1. A pair without a row cannot happen.
2. A row names every state that its handler may enter. Staying is always possible and is not named.
3. The diagrams of `ARCHITECTURE.md` are drawn from the rows. The simulation checks its own transitions against them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
H = TypeVar("H", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Row(Generic[H, S]):
    """Handler of one event in one state, and the states that it may lead to."""

    act: H
    leads_to: tuple[S, ...] = ()


AnyTable: TypeAlias = Mapping[tuple[Any, Any], Row[Any, Any]]


def rows(states: Iterable[S], event: E, act: H, *leads_to: S) -> dict[tuple[S, E], Row[H, S]]:
    """Return the same row for one event in several states."""
    row = Row(act, tuple(leads_to))
    return {(state, event): row for state in states}
