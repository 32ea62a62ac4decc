"""Rows of all ranks, built from reports of single ranks in any order, doubled, or missing."""

import pytest

from taskd.core.stragglers.rows import ROOM, Rows
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan

R0, R1 = JobRank(0), JobRank(1)


def span(rank: int, step: int, steps: int = 1, own_s: float = 1.0, **more: float) -> RankSpan:
    return RankSpan(rank=JobRank(rank), step=step, steps=steps, own_s=own_s, waited_s=0.5, **more)


def test_a_row_is_there_when_every_rank_has_reported() -> None:
    rows = Rows([R0, R1])
    rows.hear(span(0, 4, own_s=2.0))
    assert rows.take() is None
    rows.hear(span(1, 4))
    row = rows.take()
    assert row is not None
    assert [(one.rank, one.step, one.own_s) for one in row] == [(0, 4, 2.0), (1, 4, 1.0)]
    assert rows.take() is None


def test_all_that_there_is_may_be_one_row() -> None:
    rows = Rows([R0, R1])
    for step in range(5):
        rows.hear(span(0, step, own_s=float(step)))
        rows.hear(span(1, step))
    rows.hear(span(0, 5))
    row = rows.take(longest=True)
    assert row is not None
    assert [(one.step, one.steps, one.own_s) for one in row] == [(4, 5, 2.0), (4, 5, 1.0)]
    assert rows.take(longest=True) is None


def test_what_is_heard_twice_counts_once_and_a_stranger_not_at_all() -> None:
    rows = Rows([R0, R1])
    for one in (span(0, 4), span(0, 4), span(1, 4), span(7, 4), span(0, 3)):
        rows.hear(one)
    assert rows.take() is not None
    assert rows.take() is None


def test_spans_weigh_as_many_as_their_steps() -> None:
    rows = Rows([R0, R1])
    for one in (span(0, 10, 10, 1.0, work=3.0), span(0, 40, 30, 2.0, work=5.0), span(1, 40, 40, 1.0)):
        rows.hear(one)
    row = rows.take()
    assert row is not None
    assert row[0].own_s == pytest.approx(1.75)
    assert (row[0].work, row[1].work) == (4.5, 0.0)
    assert (row[0].steps, row[1].steps) == (40, 40)


def test_ranks_that_are_looked_at_at_different_times_are_off_by_a_span() -> None:
    rows, ends = Rows([R0, R1]), []
    for step in range(10, 100, 10):
        for one in (span(0, step, 10), span(1, step + 1, 10)):
            rows.hear(one)
            row = rows.take()
            if row is not None:
                ends.append(row[0].step)
    assert ends == [*range(11, 91, 10)]


def test_a_rank_that_is_silent_costs_no_memory() -> None:
    rows = Rows([R0, R1])
    for step in range(10 * ROOM):
        rows.hear(span(0, step))
    rows.hear(span(1, 10 * ROOM - 1))
    row = rows.take()
    assert row is not None
    assert row[0].step == 10 * ROOM - 1
