"""A model that is trained twice, with a new state each time: the second training costs no more than the first."""

import gc
import weakref
from pathlib import Path
from typing import Any

import torch

import taskd
from taskd.adaptors.training.limits.forgotten import forgotten
from taskd.wire.messages import Condition


class Step:
    """One training of a model, with a `TrainState` as in a worker that has an agent."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.state = taskd.TrainState(model=model, optimizer=self.optimizer)

    def enter(self, path: Path) -> None:
        """Enter the training as its training function does."""
        self.state._recovery.attach(str(path))
        self.state._recovery.begin()

    def backward(self) -> None:
        self.model(torch.ones(2, 3)).sum().backward()

    def do(self) -> None:
        self.backward()
        self.optimizer.step()
        self.state.commit()


def _nested(model: torch.nn.Module) -> int:
    """Return the number of calls wrapped around the model's own."""
    count, call = 0, vars(model)["_compiled_call_impl"]
    while call is not None and call.__closure__:
        inside = dict(zip(call.__code__.co_freevars, call.__closure__, strict=True))
        count, call = count + 1, getattr(inside.get("inner"), "cell_contents", None)
        call = call if getattr(call, "__closure__", None) else None
    return count


def test_the_former_training_goes_as_the_next_one_is_entered(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    gone: list[Any] = []
    for number in range(4):
        step = Step(model)
        step.enter(tmp_path / str(number))
        step.do()
        gone.append(weakref.ref(step.optimizer))
        last = step
        del step
        gc.collect()
        assert [one() is not None for one in gone] == [False] * number + [True]
        assert forgotten(last.state._recovery.parts) == []
        assert _nested(model) == 1


def test_a_state_that_was_made_first_can_be_entered_last(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    first, second = Step(model), Step(model)
    second.enter(tmp_path / "second")
    second.do()
    first.enter(tmp_path / "first")
    first.do()
    assert _nested(model) == 1
    recovery = first.state._recovery
    first.backward()
    assert recovery.condition() is Condition.CLEAN
    assert recovery.position(2)  # a forward pass was detected
    first.optimizer.step()
    assert recovery.condition() is Condition.STEPPED


def test_a_state_that_is_made_beside_one_that_trains_changes_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    trains = Step(model)
    trains.enter(tmp_path / "trains")
    trains.do()
    Step(model)
    trains.do()
    trains.backward()
    trains.optimizer.step()
    assert trains.state._recovery.condition() is Condition.STEPPED
    assert trains.state.step == 2
