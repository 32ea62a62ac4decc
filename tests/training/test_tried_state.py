"""The state is tried out at the first commit: values that could not be loaded after a fault are named in advance."""

import dataclasses
import logging
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from taskd.adaptors.training import packing, tree
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.looks import EarlyLooks
from taskd.adaptors.training.proof.reentry import ProofOutlook
from taskd.adaptors.training.proof.tried import unloadable
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.launch import Launcher


@dataclasses.dataclass
class Best:
    """Type of the script's own."""

    loss: float
    weights: torch.Tensor


class Kept:
    """Part whose state the test determines."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def state_with(**kept: Any) -> TrainState:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainState(model=model, optimizer=optimizer, replicated={"stopper": Kept(**kept)})


def named(state: TrainState) -> list[str]:
    return [matter.text for matter in unloadable(state._recovery.parts)]


def test_part_key_and_type_are_named() -> None:
    (text,) = named(state_with(history=[{"best": Best(0.5, torch.zeros(3))}], count=1))
    assert text.startswith(f"the Kept 'stopper' of the TrainState made at {__file__}:")
    assert f"has a {__name__}.Best under 'history'[0]['best'], which cannot be loaded" in text


@pytest.mark.parametrize(
    "value",
    [
        1 << 90,
        {1, 2},
        1 + 2j,
        OrderedDict(a=torch.zeros(2)),
        np.float64(0.5),
        np.arange(3),
        torch.zeros(2).to_sparse(),
        torch.Size([2]),
        nn.Parameter(torch.zeros(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_be_loaded_is_no_matter(value: Any) -> None:
    assert named(state_with(value=[value])) == []


@pytest.mark.parametrize("value", [lambda: 1, iter([]), slice(1)], ids=lambda value: type(value).__name__)
def test_what_is_no_value_is_named(value: Any) -> None:
    state = state_with()
    state.stopper.state["value"] = value  # as the training continues
    (text,) = named(state)
    assert f"has a {type(value).__name__}" in text
    assert "under 'value'" in text


class Table(dict[str, Any]):
    """Container of the script's own."""


def test_a_container_of_the_scripts_names_what_is_in_it() -> None:
    (text,) = named(state_with(table=Table(best=Best(0.5, torch.zeros(3)))))
    assert "Best under 'table'['best']" in text
    (text,) = named(state_with(table=Table(best=1)))
    assert "Table under 'table'" in text


def test_a_type_that_is_allowed_is_no_matter() -> None:
    state = state_with(best=Best(0.5, torch.zeros(3)))
    with torch.serialization.safe_globals([Best]):
        assert named(state) == []


def test_learning_rate_and_place_in_the_data_are_tried_too() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = slice(1)
    state = TrainState(model=model, optimizer=optimizer, data={"stream": Kept(at=Best(0.5, torch.zeros(1)))})
    first, second = named(state)
    assert "the SGD 'optimizer'" in first
    assert "a slice under 'param_groups'[0]['lr']" in first
    assert "the Kept 'stream'" in second


@pytest.mark.timed
def test_no_tensor_is_copied() -> None:
    size = 1 << 40
    huge = torch.empty(1).as_strided((size,), (0,))
    begun_s = time.monotonic()
    assert len(named(state_with(best=Best(0.5, huge), shadow={"w": huge}, odd={huge: 1}))) == 1
    assert time.monotonic() - begun_s < 5


def test_trying_ends_after_its_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("taskd.adaptors.training.proof.tried._LIMIT_S", 0.0)
    caplog.set_level(logging.INFO)
    assert named(state_with(best=Best(0.5, torch.zeros(3)))) == []
    assert "the rest of it is not tried" in caplog.text


class Raising(Kept):
    def state_dict(self) -> dict[str, Any]:
        raise LookupError("not yet")


def looks_of(state: TrainState) -> tuple[EarlyLooks, list[str]]:
    told: list[str] = []
    refusals = Refusals(lambda *, no_rebuild, no_newcomer, anew: told.append(no_rebuild), tells=True)
    return EarlyLooks(refusals, state._recovery, lambda: None, lambda: ProofOutlook.NONE), told


def test_it_is_tried_once_and_told_with_its_remedy(caplog: pytest.LogCaptureFixture) -> None:
    state = state_with(best=Best(0.5, torch.zeros(3)))
    looks, told = looks_of(state)
    looks.committed()
    looks.committed()
    (record,) = caplog.records
    assert "at a fault all processes start anew. Keep tensors, numbers" in record.getMessage()
    assert "add_safe_globals" in record.getMessage()
    assert len(told) == 1


def test_what_fails_in_it_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainState(model=model, optimizer=optimizer)
    state._recovery.parts.replicated["late"] = Raising()
    looks, told = looks_of(state)
    caplog.set_level(logging.INFO)
    looks.committed()
    assert not told
    assert "could not be looked at" in caplog.text


def test_a_rate_of_numpy_comes_through_a_recovery() -> None:
    """`lr = 0.5 * (1 + np.cos(…)) * base` leaves such a rate in the optimizer."""
    folded: list[Any] = []
    for rate in (np.float64(0.05), 0.2):
        model = nn.Linear(4, 2)
        state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        state.optimizer.param_groups[0]["lr"] = rate
        state._recovery.begin(JobRank(0))
        folded.append((state, packing.pack(state._recovery)[0]))
    (_, manifest), (receiver, _) = folded
    given = tree.unfold(manifest.parts["optimizer"], lambda body, own: own)
    receiver.optimizer.load_state_dict(given)
    rate = receiver.optimizer.param_groups[0]["lr"]
    assert (type(rate), rate) == (np.float64, 0.05)


class Asked(nn.Module):
    """Module that fills several attributes at its first call; one of them is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.kind: str | None = None
        self.tau = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind is None:
            self.kind, self.table = "fast", torch.ones(5000)
            self.scale = lambda y: 2 * y
        self.tau *= 0.5
        return self.scale(self.linear(x)) * self.tau * self.table[0]


def test_what_is_filled_beside_a_function_is_filled_by_the_new_process() -> None:
    donor, newcomer = Asked(), Asked()
    states = [TrainState(model=one, optimizer=torch.optim.SGD(one.parameters(), lr=0.1)) for one in (donor, newcomer)]
    states[0]._recovery.begin(JobRank(0))
    states[1]._recovery.declare_empty()
    newcomer.linear.load_state_dict(donor.linear.state_dict())
    donor(torch.ones(1, 4))
    changed = states[0]._recovery.parts.plain.changed()
    assert {name for _, name, _, _ in changed} == {"tau"}
    states[1]._recovery.parts.plain.put(changed)
    assert torch.equal(donor(torch.ones(1, 4)), newcomer(torch.ones(1, 4)))


def test_a_torn_process_keeps_what_it_has_filled() -> None:
    torn = Asked()
    state = TrainState(model=torn, optimizer=torch.optim.SGD(torn.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    torn(torch.ones(1, 4))
    state._recovery.parts.plain.put([])
    assert (torn.kind, torn.tau) == ("fast", 1.0)


def test_a_job_names_it_before_the_fault_and_starts_anew_at_once(launcher: Launcher, run_dir: Path) -> None:
    job = Job(launcher, run_dir, 2).start(
        "early.py",
        {"steps": 6, "shape": "own_type", "points": [point("one", 1, 3, "begin")]},
    )
    job.held("one")
    job.says("'stopper' of the TrainState made at")
    assert "early.py:" in job.output
    assert "has a Best under 'best', which cannot be loaded after a fault: at a fault all processes" in job.output
    job.kill("one")
    record = job.recovered(1)
    assert record["restart"]
    assert job.end() == 0, job.output
    assert not job.named("attempt failed")
