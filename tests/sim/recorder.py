"""Record of the rows of the three tables that a simulation uses, and of their next states."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from taskd.core import agent, recovery, worker
from taskd.core.table import Row

Pair = tuple[Any, Any]


@dataclass
class Recorder:
    """Rows of one table that were used, each with the states that it led to."""

    table: dict[Pair, Row[Any, Any]]
    state_of: Callable[[tuple[Any, ...], Any], Enum]
    """Function from a row's arguments and result to the state that it led to."""
    seen: dict[Pair, set[Enum]] = field(default_factory=dict)

    @property
    def unused(self) -> set[str]:
        """Rows that were never used, as "state, event"."""
        return {name(pair) for pair in self.table if pair not in self.seen}

    def undeclared(self) -> set[str]:
        """Return observed transitions that their row does not declare."""
        return {
            f"{name(pair)} -> {state.name}"
            for pair, states in self.seen.items()
            for state in states
            if state is not pair[0] and state not in self.table[pair].leads_to
        }

    def untaken(self) -> set[str]:
        """Return declared transitions that were never observed."""
        return {
            f"{name(pair)} -> {state.name}"
            for pair, row in self.table.items()
            for state in row.leads_to
            if state is not pair[0] and state not in self.seen.get(pair, ())
        }

    def _watched(self, pair: Pair, row: Row[Any, Any]) -> Row[Any, Any]:
        seen, state_of = self.seen, self.state_of

        def act(*given: Any) -> Any:
            result = row.act(*given)
            seen.setdefault(pair, set()).add(state_of(given, result))
            return result

        return Row(act, row.leads_to)

    @contextmanager
    def recording(self) -> Iterator["Recorder"]:
        """Record the table's use until the end of the block."""
        original = dict(self.table)
        self.table.update({pair: self._watched(pair, row) for pair, row in original.items()})
        try:
            yield self
        finally:
            self.table.update(original)


def name(pair: Pair) -> str:
    return f"{pair[0].name}, {pair[1].name}"


def recorders() -> dict[str, Recorder]:
    """Return a recorder for each machine."""
    return {
        "recovery": Recorder(recovery.TABLE, lambda _given, following: following[0].kind),
        "node": Recorder(agent.TABLE, lambda given, _: given[0].slots[given[1]].state),
        "worker": Recorder(worker.TABLE, lambda given, _: given[0].state),
    }
