"""A small run of the simulation: `python -m tests.clusters` plays more and larger clusters."""

import pytest

from tests.clusters.__main__ import Totals
from tests.clusters.cluster import draw
from tests.clusters.judge import play


@pytest.mark.parametrize(("first", "clusters", "largest"), [(0, 400, 40), (1000, 40, 600), (2488, 1, 4096)])
def test_all_faulty_nodes_are_found_and_nobody_else(first: int, clusters: int, largest: int) -> None:
    totals = Totals()
    for seed in range(first, first + clusters):
        totals.add(play(draw(seed, largest=largest)))
    assert totals.wrong == []
    if clusters > 1:
        assert len(totals.told) == 12, totals.told  # every kind of fault occurred and was found
