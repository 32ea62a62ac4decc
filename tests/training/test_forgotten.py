"""Parts of a training that are missing in its state are found before the first step."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.training.limits.forgotten import forgotten
from taskd.adaptors.training.limits.refusals import matters
from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.parts.parts import Parts

Given = dict[str, Any]


@pytest.fixture
def given() -> Given:
    gc.collect()  # objects of other tests in this process
    model = torch.nn.Linear(2, 3)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


OTHERS: dict[str, Callable[[Given], Any]] = {
    "scheduler": lambda given: StepLR(given["optimizer"], 1),
    "optimizer": lambda given: torch.optim.Adam(given["model"].parameters()),
    "average": lambda given: AveragedModel(given["model"]),
    "scaler": lambda _: torch.amp.GradScaler("cpu"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_was_not_given_is_refused_by_name(given: Given, kind: str) -> None:
    other = OTHERS[kind](given)
    parts = Parts(sort(given))
    assert forgotten(parts) == [other]
    (matter,) = matters(parts)
    assert matter.no_rebuild
    assert f"test_forgotten.py:{test_what_was_not_given_is_refused_by_name.__code__.co_firstlineno + 3} " in matter.text
    assert matter.text.endswith(f"was not given the {type(other).__name__} of its training")
    assert matters(parts, joins=True) == []
    assert matters(Parts(sort(given | {"other": other}))) == []


def test_what_is_within_a_part_was_given(given: Given) -> None:
    optimizer = given["optimizer"]
    both = SequentialLR(optimizer, [ConstantLR(optimizer), LinearLR(optimizer)], [2])

    class Trainer:
        def __init__(self) -> None:
            self.averages = [AveragedModel(given["model"])]

        def state_dict(self) -> dict[str, Any]:
            return {}

        load_state_dict = state_dict

    parts = Parts(sort(given | {"scheduler": both}, replicated={"trainer": Trainer()}))
    assert matters(parts) == []


def test_what_has_to_do_with_others_or_does_nothing_is_left_alone(given: Given) -> None:
    elsewhere = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    kept = [
        StepLR(elsewhere, 1),
        torch.amp.GradScaler("cpu", enabled=False),
        AveragedModel(torch.nn.Linear(4, 4)),
    ]
    assert matters(Parts(sort(given))) == []
    del kept


def test_what_the_script_has_dropped_is_left_alone(given: Given) -> None:
    scheduler = StepLR(given["optimizer"], 1)
    scheduler.itself = scheduler  # type: ignore[attr-defined]
    del scheduler
    assert matters(Parts(sort(given))) == []


class Container(torch.optim.Optimizer):
    """Optimizer with one optimizer for each part of a model, like torchtitan's."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], {})


def test_what_only_steps_the_optimizers_that_were_given_is_left_alone() -> None:
    gc.collect()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    container = Container([*model])
    first, second = container.optimizers
    assert matters(Parts(sort({"model": model, "first": first, "second": second}))) == []
    assert set(forgotten(Parts(sort({"model": model, "first": first})))) == {second, container}


class Schedulers:
    """Schedulers like torchtitan's."""

    def __init__(self, container: Container) -> None:
        self.schedulers = [StepLR(optimizer, 1) for optimizer in container.optimizers]

    def state_dict(self) -> dict[str, Any]:
        return self.schedulers[0].state_dict()

    load_state_dict = state_dict


def test_of_a_container_those_that_it_holds_are_parts() -> None:
    gc.collect()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    container = Container([*model])
    schedulers = Schedulers(container)
    parts = Parts(sort({"model": model, "optimizer": container, "scheduler": schedulers}))
    assert parts.optimizers == container.optimizers
    assert [*parts.replicated] == ["model", "optimizer_0", "optimizer_1", "scheduler_0", "scheduler_1"]
    assert matters(parts) == []


def test_what_holds_more_than_schedulers_is_a_part_itself(given: Given) -> None:
    class Trainer(Schedulers):
        epoch = 0

        def __init__(self) -> None:
            self.schedulers = [StepLR(given["optimizer"], 1)]
            self.epoch = 1

    trainer = Trainer()
    assert Parts(sort(given, replicated={"trainer": trainer})).replicated["trainer"] is trainer
