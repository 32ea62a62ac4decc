"""Stragglers in synthetic jobs: for each rule of the detector, the smallest trace that shows it."""

import math
import random
from collections.abc import Callable

import pytest

from taskd.core.stragglers.compare import against_others, median
from taskd.core.stragglers.detector import Layout, SlowCause, Step, Straggler, Stragglers, judge
from taskd.core.stragglers.exclusion import exclusion
from taskd.core.stragglers.work import WorkLaw
from taskd.wire.kinds import JobRank, NodeRank

RANKS = 8
LAYOUT = Layout({JobRank(rank): NodeRank(rank // 4) for rank in range(RANKS)})
Times = Callable[[int, int], float]
"""Function from rank and step to the factor on the usual duration."""


def usual(rank: int, step: int) -> float:
    return 1.0


def trace(own: Times = usual, data: Times = lambda rank, step: 0.0, *, steps: int = 160, wait_s: float = 0.01):
    chance = random.Random(1)
    rows = []
    for step in range(steps):
        owns = [0.1 * own(rank, step) * chance.uniform(0.97, 1.03) for rank in range(RANKS)]
        loads = [0.1 * data(rank, step) for rank in range(RANKS)]
        slowest_s = max(map(sum, zip(owns, loads, strict=True)))
        rows.append(
            [
                Step(JobRank(rank), step, owns[rank], slowest_s - owns[rank] - loads[rank] + wait_s, loads[rank])
                for rank in range(RANKS)
            ]
        )
    return rows


def from_step(first: int, ranks: tuple[int, ...], factor: float) -> Times:
    return lambda rank, step: factor if step >= first and rank in ranks else 1.0


def only(found: tuple[Straggler, ...]) -> Straggler:
    (one,) = found
    return one


def test_a_healthy_job_is_not_told_of() -> None:
    assert judge(trace(steps=1000), LAYOUT) == ()


def test_a_rank_that_becomes_slow_is_told_once_with_its_figures() -> None:
    found = only(judge(trace(from_step(100, (5,), 1.2)), LAYOUT))
    assert (found.cause, found.ranks, found.blamed, found.from_start) == (SlowCause.COMPUTE, (5,), (5,), False)
    assert found.since in range(98, 103)
    assert found.excess == pytest.approx(0.2, abs=0.03)
    assert found.own_s == pytest.approx(0.12, abs=0.005)
    assert found.usual_s == pytest.approx(0.1, abs=0.005)
    assert "rank 5 needs 0.12" in found.sentence.lower()


def test_it_is_told_again_only_after_it_was_well() -> None:
    def twice(rank: int, step: int) -> float:
        return 1.3 if rank == 2 and (100 <= step < 200 or step >= 400) else 1.0

    assert [found.ranks for found in judge(trace(twice, steps=500), LAYOUT)] == [(2,), (2,)]


def test_a_rank_that_was_slow_from_the_start_is_told_as_such() -> None:
    found = only(judge(trace(from_step(0, (3,), 1.25)), LAYOUT))
    assert (found.ranks, found.from_start) == ((3,), True)


def test_a_rank_that_always_needs_a_little_more_is_well() -> None:
    assert judge(trace(from_step(0, (0,), 1.05), steps=2000), LAYOUT) == ()


def test_a_rank_that_gets_worse_bit_by_bit_is_found() -> None:
    found = judge(trace(lambda rank, step: 1 + 0.0003 * step * (rank == 6), steps=600), LAYOUT)
    assert [one.ranks for one in found] == [(6,)]


def test_ranks_that_are_slow_together_are_a_slow_node() -> None:
    found = only(judge(trace(from_step(100, (4, 5, 6, 7), 1.2)), LAYOUT))
    assert (found.cause, found.blamed) == (SlowCause.NODE, (4, 5, 6, 7))


def test_a_rank_that_waits_for_data_is_told_so() -> None:
    found = only(judge(trace(data=lambda rank, step: 0.4 * (rank == 1 and step >= 100)), LAYOUT))
    assert (found.cause, found.blamed) == (SlowCause.DATA, (1,))
    assert found.own_s == pytest.approx(0.04)


def test_collectives_that_take_longer_accuse_the_network_and_no_rank() -> None:
    rows = trace(steps=100) + [
        [one._replace(step=one.step + 100, waited_s=one.waited_s + 0.03) for one in row] for row in trace(steps=60)
    ]
    found = only(judge(rows, LAYOUT))
    assert (found.cause, found.ranks, found.blamed) == (SlowCause.LINK, (), ())


def test_a_stage_that_always_has_more_to_do_accuses_nobody() -> None:
    rows = trace(from_step(0, (6, 7), 1.3), steps=300)
    staged = Layout(LAYOUT.nodes, {rank: rank // 2 for rank in LAYOUT.nodes})
    found = only(judge(rows, staged))
    assert (found.cause, found.ranks, found.blamed) == (SlowCause.IMBALANCE, (6, 7), ())


def test_a_rank_of_an_unequal_pipeline_that_becomes_slow_is_found() -> None:
    staged = Layout(LAYOUT.nodes, {rank: rank // 2 for rank in LAYOUT.nodes})
    rows = trace(lambda rank, step: 1.3 * (1.2 if step >= 150 and rank == 6 else 1.0) if rank > 5 else 1.0, steps=250)
    assert {found.blamed for found in judge(rows, staged)} == {(), (6,)}


def test_seasons_are_set_aside() -> None:
    def seasons(rank: int, step: int) -> float:
        evaluates, saves = step % 50 == 49, step % 20 == 19 and rank == 0
        return 1.0 + 4.0 * evaluates * (1 + rank / 8) + 3.0 * saves

    assert judge(trace(seasons, steps=1000), LAYOUT) == ()


def test_a_season_in_which_one_rank_has_more_to_do() -> None:
    def evaluates(rank: int, step: int) -> float:
        return 4.0 * (1 + 0.5 * (rank == 5)) if step > 100 and step % 3 == 0 else 1.0

    assert judge(trace(evaluates, steps=600), LAYOUT) == ()


def test_rows_of_many_steps_are_told_in_steps() -> None:
    rows = trace(from_step(100, (5,), 1.2))
    many = [[one._replace(step=10 * one.step + 9, steps=10) for one in row] for row in rows]
    found = only(judge(many, LAYOUT))
    assert found.since in range(980, 1040)
    assert found.steps % 10 == 0
    assert f"over {found.steps} steps" in found.sentence


def test_a_short_burst_is_forgiven() -> None:
    rows = trace(lambda rank, step: 3.0 if rank == 4 and step % 100 in (60, 61, 62) else 1.0, steps=1000)
    assert judge(rows, LAYOUT) == ()


def test_a_rank_for_which_nobody_waits_is_not_slow() -> None:
    rows = trace(from_step(100, (5,), 1.3))
    loose = [[one._replace(waited_s=0.1) if one.rank == 5 else one for one in row] for row in rows]
    assert judge(loose, LAYOUT) == ()


def test_more_work_is_no_slowness() -> None:
    """Lengths differ by a factor of four. Rank 3 has half as much work again, and rank 5 is slower by 15 %."""
    chance = random.Random(2)
    rows = []
    for step in range(400):
        works = [chance.choice((1000, 2000, 4000)) * (1.5 if rank == 3 else 1.0) for rank in range(RANKS)]
        slow = [1.15 if rank == 5 and step >= 300 else 1.0 for rank in range(RANKS)]
        owns = [
            factor * chance.uniform(0.97, 1.03) * (0.02 + work / 1e5) for work, factor in zip(works, slow, strict=True)
        ]
        rows.append([Step(JobRank(r), step, own, max(owns) - own, 0.0, works[r]) for r, own in enumerate(owns)])
    found = judge(rows, LAYOUT)
    assert [one.blamed for one in found if one.blamed] == [(5,)]
    assert all(one.ranks == (3,) for one in found if one.cause is SlowCause.WORKLOAD)
    assert judge([[one._replace(work=0.0) for one in row] for row in rows], LAYOUT) == (), "one cannot know"


def test_the_law_of_work_is_learned() -> None:
    law, chance = WorkLaw(), random.Random(3)
    for _ in range(200):
        works = [chance.uniform(500, 4000) for _ in range(RANKS)]
        law.learn(works, [math.log(0.05 + work / 1e4) for work in works])
    low, high = law.effects([500, 4000])
    assert high - low == pytest.approx(math.log(0.45 / 0.1), abs=0.1), "a curve of two numbers"


def test_a_job_whose_noise_is_great_is_judged_later() -> None:
    quiet, loud = Stragglers(LAYOUT), Stragglers(LAYOUT)
    assert quiet.steps_needed() == float("inf")
    chance = random.Random(4)
    for row in trace(steps=100):
        quiet.note(row)
        loud.note([one._replace(own_s=one.own_s * chance.uniform(0.6, 1.4)) for one in row])
    assert quiet.steps_needed() < 20 < loud.steps_needed()


def test_a_new_world_is_learned_anew() -> None:
    detector = Stragglers(LAYOUT)
    for row in trace(steps=100):
        detector.note(row)
    detector.restart()
    assert [found for row in trace(from_step(0, (5,), 1.3), steps=20) for found in detector.note(row)] == []


def test_a_step_of_which_a_rank_is_missing_is_not_judged() -> None:
    assert judge([row[1:] for row in trace(from_step(100, (5,), 1.5))], LAYOUT) == ()


def test_two_ranks() -> None:
    rows = [row[:2] for row in trace(from_step(100, (1,), 1.3))]
    assert only(judge(rows, Layout({JobRank(0): NodeRank(0), JobRank(1): NodeRank(0)}))).blamed == (1,)


@pytest.mark.parametrize("count", range(2, 9))
def test_against_the_others(count: int) -> None:
    values = [random.Random(count).random() for _ in range(count)]
    wanted = [value - median(values[:place] + values[place + 1 :]) for place, value in enumerate(values)]
    assert against_others(values) == pytest.approx(wanted)


def slow(**changes: object) -> Straggler:
    given: dict = {
        "cause": SlowCause.COMPUTE, "ranks": (5,),
        "since": 100, "steps": 12, "excess": 0.2, "own_s": 0.12, "usual_s": 0.1,
        "score": 20.0, "sentence": "", "from_start": False,
    }  # fmt: skip
    return Straggler(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "spares", "even", "places"),
    [
        ({}, 1, False, (1,)),
        ({"cause": SlowCause.NODE, "ranks": (4, 5, 6, 7)}, 1, False, (1,)),
        ({}, 0, False, ()),
        ({"cause": SlowCause.DATA}, 1, False, ()),
        ({"cause": SlowCause.LINK, "ranks": ()}, 1, False, ()),
        ({"cause": SlowCause.WORKLOAD}, 1, False, ()),
        ({"cause": SlowCause.IMBALANCE}, 1, False, ()),
        ({"excess": 0.06}, 1, False, ()),
        ({"from_start": True}, 1, False, ()),
        ({"from_start": True}, 1, True, (1,)),
        ({"cause": SlowCause.NODE, "ranks": (3, 4)}, 1, False, ()),
    ],
)
def test_who_leaves(changes: dict, spares: int, even: bool, places: tuple[int, ...]) -> None:
    chosen = exclusion(slow(**changes), LAYOUT, spares, even=even)
    assert chosen.places == places
    assert chosen.reason


def test_a_job_that_takes_longer_steps_from_now_on_is_judged_soon_again() -> None:
    rows = trace(lambda rank, step: (4.0 if step >= 60 else 1.0) * (1.5 if rank == 2 and step >= 80 else 1.0))
    (found,) = judge(rows, LAYOUT)
    assert found.ranks == (2,)
    assert judge(rows[:100], LAYOUT) == (found,)
