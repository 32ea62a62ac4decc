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
        if target is not source
    }
    assert named <= drawn
    assert len(drawn - named) == (machine.name == "recovery")


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_can_be_reached(machine: Machine) -> None:
    text = mermaid(machine)
    assert text.startswith(f"stateDiagram-v2\n    [*] --> {machine.first.name}\n")
    for state in type(machine.first):
        assert f"--> {state.name}" in text
