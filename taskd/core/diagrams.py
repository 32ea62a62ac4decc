"""The tables as Mermaid state diagrams, for `ARCHITECTURE.md`.

Rules:

1. Everything drawn comes from the rows: a row draws an arrow to each state that it may lead to, labelled by its event.
2. Rows that only stay draw nothing. Pairs that are not in the table do not exist.
3. The same tables give the same text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from taskd.core import agent, recovery, worker
from taskd.core.table import AnyTable


@dataclass(frozen=True, slots=True)
class Machine:
    """One table, and the state that it starts in."""

    name: str
    table: AnyTable
    first: Enum
    last: tuple[Enum, ...] = ()


MACHINES = (
    Machine("recovery", recovery.TABLE, recovery.Phase.FORMING, (recovery.Phase.STOPPED,)),
    Machine("node", agent.TABLE, agent.RankState.RUNNING),
    Machine("worker", worker.TABLE, worker.WorkerState.SETUP, (worker.WorkerState.RELEASED,)),
)
FORMED = (recovery.Phase.FORMING, recovery.Phase.RUNNING, "all nodes have reported")
"""The one transition that is no row: it is made by the number of nodes, and not by an event of a rank."""


def mermaid(machine: Machine) -> str:
    """A `stateDiagram-v2` of one machine, without the code fence, ending in a newline."""
    lines = ["stateDiagram-v2", f"    [*] --> {machine.first.name}"]
    arrows = _arrows(machine)
    for source in type(machine.first):
        for target in type(machine.first):
            events = list(dict.fromkeys(arrows.get((source, target), ())))
            if events:
                lines.append(f"    {source.name} --> {target.name}: {', '.join(events)}")
    lines += [f"    {state.name} --> [*]" for state in machine.last]
    return "\n".join(lines) + "\n"


def _arrows(machine: Machine) -> dict[tuple[Enum, Enum], list[str]]:
    arrows: dict[tuple[Enum, Enum], list[str]] = {}
    for source, target, label in _moves(machine):
        arrows.setdefault((source, target), []).append(label)
    return arrows


def _moves(machine: Machine) -> Iterator[tuple[Enum, Enum, str]]:
    if machine.first is FORMED[0]:
        yield FORMED
    for (source, event), row in machine.table.items():
        for target in row.leads_to:
            if target is not source:
                yield source, target, event.value
