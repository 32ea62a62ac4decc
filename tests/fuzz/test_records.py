"""A thousandth of the attacks before a release: damaged and hostile boxes and journals against their readers."""

import pytest

from tests.fuzz import boxes, journals

COUNT = 1000


@pytest.mark.parametrize("seed", [1])
def test_boxes_are_told_or_refused(seed: int) -> None:
    counts = boxes.run(seed, COUNT)
    assert counts["boxes"] == counts["told"] + counts["refused"] == COUNT
    assert counts["told"] > COUNT * 0.9, "they are damaged where somebody looks"
    assert counts["refused"] > 0
    assert counts["left out"] > 0
    assert counts["spans"] > 0


@pytest.mark.parametrize("seed", [1])
def test_journals_are_told_and_their_damage_is_counted(seed: int) -> None:
    counts = journals.run(seed, COUNT)
    assert counts["journals"] == counts["whole"] + counts["with damaged lines"] + counts["refused"] == COUNT
    assert counts["whole"] > COUNT * 0.1
    assert counts["evidence"] > COUNT * 0.02
