"""Remedies if torchrun has too few descriptors: none needed, a higher soft limit, or torchrun without taskd."""

import pytest

from taskd.core.descriptors import DescriptorPlan, needed_descriptors, plan_descriptors


def needed(ranks: int = 2, standbys: int = 1, nodes: int = 1, *, embeds: bool = True, logs: bool = False) -> int:
    return needed_descriptors(14, ranks, standbys, nodes, embeds=embeds, logs=logs)


def test_everything_that_a_job_has_more_of_costs() -> None:
    assert needed(ranks=3) > needed()
    assert needed(standbys=2) > needed() > needed(standbys=0)
    assert needed() > needed(embeds=False)
    assert needed(nodes=3, embeds=False) - needed(nodes=2, embeds=False) == 2, "the store has the ranks of all nodes"
    assert needed(logs=True) > needed()
    assert needed_descriptors(15, 2, 1, 1, embeds=True, logs=False) == needed() + 1


@pytest.mark.parametrize(("ranks", "most"), [(2, 86), (4, 117), (8, 177)])
def test_the_count_is_no_less_than_what_was_measured(ranks: int, most: int) -> None:
    """`most`: highest number that torchrun had open while half of its ranks were killed, twice."""
    assert most <= needed(ranks) <= most + 10


@pytest.mark.parametrize(
    ("soft", "hard", "obstacle", "limit"),
    [(80, 80, "", None), (81, 1000, "", None), (79, 80, "", 80), (79, 1 << 30, "", 1 << 30), (80, 80, "bash", None)],
)
def test_enough_is_left_and_too_few_become_the_hard_limit(
    soft: int, hard: int, obstacle: str, limit: int | None
) -> None:
    assert plan_descriptors(80, soft, hard, obstacle) == DescriptorPlan(limit=limit)


@pytest.mark.parametrize(
    ("soft", "hard", "obstacle", "words"),
    [
        (48, 64, "", ("found a limit of 64 descriptors, expected at least 80", "ulimit -n 80")),
        (48, 1000, "bash is no Python", ("found a limit of 48", "it cannot be raised here: bash is no Python")),
    ],
)
def test_a_refusal_names_the_numbers_and_the_remedy(
    soft: int, hard: int, obstacle: str, words: tuple[str, ...]
) -> None:
    plan = plan_descriptors(80, soft, hard, obstacle)
    assert plan.limit is None
    assert all(word in plan.refusal for word in words), plan.refusal
