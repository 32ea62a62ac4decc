"""State outside the state in classes of the script's: a loop with methods, samplers with their own order."""

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from taskd.adaptors.training.proof.reentry import ProofOutlook
from taskd.adaptors.training.proof.samples import row_of
from tests.training.walked import (
    Loop,
    MadeAnew,
    MadeOfThemselves,
    Pace,
    ShuffledInPlace,
    SortedFirst,
    Training,
    line_in,
    over_bins,
)


def test_what_the_methods_of_a_loop_come_back_to() -> None:
    """The walk reaches it by a name that the caller lacks: `self` of another object. Displayed values are no state."""
    one = Training()
    loop = Loop(one)

    def train() -> None:
        while one.state.step < 4:
            loop.run_step(one.state.step)
            one.state.commit()

    found = one.found(train)
    assert {text.partition(" ")[0] for text in found} == {"loop.sampler._losses", "loop.decay"}


@pytest.mark.parametrize("bins", [4, 3000])
@pytest.mark.parametrize("kind", [MadeOfThemselves, ShuffledInPlace, SortedFirst, MadeAnew])
def test_a_list_that_each_pass_makes_from_that_of_the_last(kind: Any, bins: int) -> None:
    """A list that each pass makes from scratch is no state."""
    sampler = kind(bins)
    data = torch.utils.data.TensorDataset(torch.ones(2 * bins, 4))
    loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=lambda rows: torch.stack([row[0] for row in rows]))
    one = Training(loader=loader)
    found = one.found(over_bins(one, sampler, loader), ProofOutlook.EXACT)
    assert [text.partition(" ")[0] for text in found] == ([] if kind in (SortedFirst, MadeAnew) else ["bins.bins"])
    assert not one.state._recovery.parts.taken.any


def test_what_the_first_step_sets_and_later_ones_read() -> None:
    one = Training()
    pace = Pace()

    def train() -> None:
        while one.state.step < 4:
            rows = torch.randn(8, 4)
            loss = pace(one.network(rows).square().mean(dim=0))
            loss.backward()
            one.optimizer.step()
            one.state.commit()

    (text,) = one.found(train, ProofOutlook.EXACT)
    line = line_in(Pace.__call__, 2)
    assert text.startswith(f"pace.first is set by the first step that finds it empty ({line}), and later steps read it")
    assert not one.state._recovery.parts.taken.any


def test_a_table_of_first_losses() -> None:
    one = Training()
    first: dict[str, float] = {}

    def train() -> None:
        while one.state.step < 4:
            loss = one.network(torch.randn(8, 4)).square().mean()
            if "loss" not in first:
                first["loss"] = loss.item()
            (loss / first["loss"]).backward()
            one.optimizer.step()
            one.state.commit()

    (text,) = one.found(train, ProofOutlook.EXACT)
    assert text.startswith("first['loss'] is set by the first step that finds it empty (")


@pytest.mark.timed
@pytest.mark.parametrize("value", [[[0.0] * 3_000_000] * 2, [1 << 20_000], [[1, [2, None]], (3, "a")]])
def test_a_long_list_is_looked_at_in_no_time(value: Any) -> None:
    begun_s = time.monotonic()
    mark = row_of(value)
    assert mark is not None
    assert len(mark) == 16
    assert time.monotonic() - begun_s < 0.5


class Showing:
    def __repr__(self) -> str:
        raise AssertionError("the script's own code was called")


@pytest.mark.parametrize("value", [[Showing()], [[1] * 40 + [Showing()]], [torch.ones(1)], (1, {"a": 1})])
def test_what_is_no_list_of_numbers_is_not_written_out(value: Any) -> None:
    assert row_of(value) is None
