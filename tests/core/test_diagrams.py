"""The diagrams say what the tables say."""

import re

import pytest

from taskd.core.diagrams import MACHINES, Machine, mermaid


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_transition_of_the_table_is_drawn_once(machine: Machine) -> None:
    text = mermaid(machine)
    drawn = {
        (source, target, event)
        for source, target, events in re.findall(r"^    (\w+) --> (\w+): (.+)$", text, re.MULTILINE)
        for event in events.split(", ")
    }
    named = {
        (source.name, target.name, event.value)
        for (source, event), row in machine.table.items()
        for target in row.leads_to
        if target is not source and event not in machine.everywhere.get(target, ())
    }
    assert drawn == named
    for target, events in machine.everywhere.items():
        assert f"note right of {target.name}: {', '.join(event.value for event in events)}: " in text
        for event in events:
            rows = {source: row for (source, found), row in machine.table.items() if found is event}
            assert len(rows) > len(type(machine.first)) - 4, "an event that happens in few states is drawn"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_can_be_reached(machine: Machine) -> None:
    text = mermaid(machine)
    assert text.startswith(f"stateDiagram-v2\n    [*] --> {machine.first.name}\n")
    for state in type(machine.first):
        assert f"--> {state.name}" in text
