"""Ray receives each report exactly once, whichever it had received when a worker was replaced."""

import json

import pytest

from taskd.adaptors.trainers.ray.owed import MOST_KEPT, Owed


def give(owed: Owed, *values: int) -> list[int]:
    """Give these reports as the training does. Return those that Ray has to receive."""
    given = []
    for value in values:
        if owed.next():
            owed.keep({"value": value}, f"/{value}")
            given.append(value)
    return given


def values(kept: object) -> list[int]:
    return [json.loads(one.metrics)["value"] for one in kept]  # type: ignore[attr-defined]


def test_undisturbed_every_report_is_given() -> None:
    assert give(Owed(), 1, 2, 3) == [1, 2, 3]


@pytest.mark.parametrize(("total", "again", "given"), [(2, [], []), (1, [], [2]), (0, [1], [2])])
def test_after_a_fault_ray_gets_what_it_lacks(total: int, again: list[int], given: list[int]) -> None:
    """Two reports were made, the step of the second is done again, and Ray has received `total` reports."""
    owed = Owed()
    give(owed, 1)
    committed = owed.state()
    give(owed, 2)
    owed.load(committed)
    assert values(owed.settle(total)) == again
    assert give(owed, 2) == given


def test_the_next_process_of_a_rank_knows_what_the_former_has_given() -> None:
    former = Owed(began=4)
    give(former, 1, 2)
    new = Owed(began=5)  # Ray has received one of the two
    new.load(former.state())
    assert values(new.settle(5)) == [2]
    assert give(new, 3) == [3]


def test_few_are_kept() -> None:
    owed = Owed()
    give(owed, *range(9))
    assert len(owed.kept) == MOST_KEPT
