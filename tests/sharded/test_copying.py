"""Ranks that are killed while they copy their states: nothing is lost. Without the ranks' agreement, state is lost."""

from pathlib import Path

import pytest

from tests.sharded.copying import judge


def test_whoever_dies_in_a_copy_nothing_is_lost(tmp_path: Path) -> None:
    found = judge(12, seed=3, folder=tmp_path, limit_s=120)
    assert (found["kills"], found["lost"], found["wrong"]) == (12, 0, 0), found


@pytest.mark.thorough
def test_without_an_agreement_something_is_lost(tmp_path: Path) -> None:
    """The ranks then have copies of different steps, and no step is left to which all can go back."""
    found = judge(24, seed=3, folder=tmp_path, limit_s=140, mutation="no_agreement", nodes=1)
    assert found["lost"], found
