"""Scripts can reach only the documented names of taskd."""

import inspect
import re
from pathlib import Path

import torch

import taskd

PAGE = (Path(__file__).parents[2] / "docs" / "script.md").read_text()


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_state_shows_what_is_documented() -> None:
    """Its docstring and the page list them, and each name has a docstring of its own."""
    shown = public(taskd.TrainState)
    (line,) = re.findall(r"What a script uses: (.*), and its parts\.", inspect.getdoc(taskd.TrainState) or "")
    assert set(re.findall(r"`(\w+)`", line)) == shown
    (table,) = re.findall(r"## The state\n(.*?)\n## ", PAGE, re.DOTALL)
    assert set(re.findall(r"^\| `state\.(\w+)", table, re.MULTILINE)) == shown | {"model"}
    assert all(inspect.getdoc(getattr(taskd.TrainState, name)) for name in shown)


def test_one_that_was_made_shows_its_parts_too() -> None:
    model = torch.nn.Linear(1, 1)
    state = taskd.TrainState(seed=1, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert public(state) == public(taskd.TrainState) | {"model", "optimizer"}
    assert [name for name in vars(state) if not name.startswith("_")] == []


def test_the_package_shows_what_is_documented() -> None:
    (line,) = re.findall(r"`import taskd` gives a script (.*?)\. It needs", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", line)) == set(taskd.__all__) - {"__version__"}
