"""Random numbers as a function of seed, rank and step."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from taskd.adaptors.training.positions.position_file import SLOT_BYTES
from taskd.adaptors.training.positions.seeds import Seeds, mix
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank, WorldRank


class Counter:
    at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def make(seed: int | None, **parts: Any) -> TrainState:
    model = nn.Linear(2, 2)
    return TrainState(seed=seed, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **parts)


def draw() -> list[float]:
    """Draw an odd number of normal values: generators that keep a spare one must forget it."""
    return [random.gauss(0, 1), random.random(), float(np.random.normal()), torch.randn(1).item(), torch.rand(1).item()]


def numbers_of(seed: int, rank: int, step: int) -> list[float]:
    Seeds(seed).sow(rank, step)
    return draw()


def test_the_mixer_is_splitmix64() -> None:
    """First outputs of the published generator for the state 1234567."""
    golden = 0x9E3779B97F4A7C15
    outputs = [mix((1234567 + place * golden) % 2**64) for place in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_numbers_depend_on_seed_rank_and_step_alone() -> None:
    assert numbers_of(1, 2, 3) == numbers_of(1, 2, 3)
    all_different = [numbers_of(*where) for where in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (0, 0, 0))]
    for numbers in zip(*all_different, strict=True):
        assert len(set(numbers)) == len(all_different), numbers
    seeds = Seeds(1)
    seeds.sow(7, 7)
    seeds.sow(2, 3)
    assert draw() == numbers_of(1, 2, 3)


def test_generators_made_alike_get_different_seeds() -> None:
    Seeds(5).sow(0, 0)
    assert np.random.get_state(legacy=False)["state"]["key"][0] != torch.default_generator.initial_seed() & 0xFFFFFFFF


@pytest.mark.parametrize("attached", [False, True])
def test_each_step_begins_with_its_own_numbers(attached: bool, tmp_path: Path) -> None:
    state = make(9)
    if attached:
        state._recovery.attach(str(tmp_path / "position"))
        assert state._recovery.shows_steps, "the core does not count these steps"
    state._recovery.begin(JobRank(4))
    seen = []
    for step in range(3):
        seen.append(draw())
        assert seen[step] == numbers_of(9, 4, step)
        state.commit()
    elsewhere = make(9)  # on another node: there is no position file
    elsewhere._recovery.enter_world(JobRank(4), WorldRank(3), 4, 5)
    elsewhere.step = 2
    assert elsewhere._recovery.return_to(2) == ""
    assert draw() == seen[2]
    assert state._recovery.return_to(1) == ""
    assert draw() == seen[1], "the rank kept going"


def test_no_numbers_are_put_down(tmp_path: Path) -> None:
    state = make(9)
    state._recovery.attach(str(tmp_path / "position"))
    state._recovery.begin()
    state.commit()
    written = (tmp_path / "position").read_bytes()
    assert all(not any(written[at + 28 : at + SLOT_BYTES]) for at in range(0, len(written), SLOT_BYTES))


def test_data_positions_are_put_down_with_a_seed_too(tmp_path: Path) -> None:
    counter = Counter()
    state = make(9, data={"loader": counter})
    state._recovery.attach(str(tmp_path / "position"))
    state._recovery.begin(JobRank(1))
    for step in (1, 2):
        counter.at = 10 * step
        state.commit()
    again = make(9, data={"loader": Counter()})
    again._recovery.attach(str(tmp_path / "position"))
    again._recovery.enter_world(JobRank(1), WorldRank(1), 2, 2)
    assert again._recovery.return_to(1) == ""
    assert (again.loader.at, draw()) == (10, numbers_of(9, 1, 1))
    note = make(9, data={"loader": Counter()})._recovery.return_to(1)
    assert note == "data position (loader) of step 1 not known on this node: this rank goes on with its own"


def test_without_a_seed_the_remedy_is_named() -> None:
    line = make.__code__.co_firstlineno + 2
    assert f"TrainState(seed=...) at {__file__}:{line} random numbers are exact" in make(None)._recovery.return_to(5)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", True])
def test_a_seed_is_a_number_of_64_bits(seed: Any) -> None:
    with pytest.raises(ConfigError, match="expected an integer from 0 to"):
        make(seed)
