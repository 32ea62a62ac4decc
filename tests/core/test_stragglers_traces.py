"""Recall and false alarms over a share of the synthetic traces; all of them: `python -m tests.data.judge`."""

from itertools import product

import pytest

from taskd.core.stragglers.detector import Layout, SlowCause, judge
from taskd.wire.kinds import JobRank, NodeRank
from tests.data.judge import AFTER_STEPS, KNOWN, played
from tests.data.recorded import RECORDED, Trace, read
from tests.data.synthetic import Case, Family, Fault
from tests.thorough import everyday


def cases(family: Family, excess: float, *, noises: tuple[float, ...], many: int) -> list[Case]:
    return [
        Case(family, ranks, 2 * AFTER_STEPS + seed, 300 + seed, Fault.RANK, excess, AFTER_STEPS + seed, noise=noise)
        for noise, ranks, seed in product(noises, (4, 16), range(many))
    ]


@pytest.mark.parametrize("family", everyday(KNOWN, Family.MIXED))
def test_ranks_slow_by_10_percent_are_found_within_20_steps(family: Family) -> None:
    found = [played(case) for case in cases(family, 0.1, noises=(0.01, 0.02, 0.03), many=25)]
    assert sum(one.in_time for one in found) >= 0.99 * len(found)
    assert sum(len(one.false) for one in found) <= 1e-4 * sum(one.case.onset for one in found) + 1


@pytest.mark.parametrize("family", KNOWN)
def test_ranks_slow_by_30_percent_are_found_within_20_steps_where_times_vary_more(family: Family) -> None:
    found = [played(case) for case in cases(family, 0.3, noises=(0.05,), many=20)]
    assert sum(one.in_time for one in found) >= 0.99 * len(found)


def test_where_sizes_are_not_known_nobody_is_accused_by_mistake() -> None:
    """Lengths differ by a factor of eight: a slowdown of 10 % cannot be distinguished from that."""
    found = [played(case) for case in cases(Family.UNTOLD, 0.1, noises=(0.02,), many=10)]
    assert not [text for one in found for text in one.false]


@pytest.mark.parametrize("fault", [Fault.NODE, Fault.DATA, Fault.LINK])
def test_what_is_slow_is_told_apart(fault: Fault) -> None:
    found = [
        played(Case(family, 16, 220, 400 + seed, fault, 0.2, 120))
        for family, seed in product((Family.FIXED, Family.PACKED, Family.MIXED), range(4))
    ]
    assert all(one.in_time for one in found), [one for one in found if not one.in_time]


def test_a_rank_that_chance_has_made_suspicious_is_not_told_without_its_node() -> None:
    found = played(Case(Family.PADDED, 16, 259, 5007, Fault.NODE, 0.2, 159))
    assert (found.in_time, found.false) == (True, ())


@pytest.mark.parametrize("fault", [Fault.STAGES, Fault.HEAVY])
def test_who_has_more_to_do_is_not_accused(fault: Fault) -> None:
    family, excess = (Family.PACKED, 0.25) if fault is Fault.STAGES else (Family.MIXED, 1.0)
    found = [played(Case(family, 16, 600, 500 + seed, fault, excess)) for seed in range(4)]
    assert all(one.delay is not None for one in found)
    assert not [text for one in found for text in one.false]


@pytest.mark.parametrize("family", everyday(Family, Family.PADDED))
def test_a_healthy_job_has_at_most_one_false_alarm_in_10_000_steps(family: Family) -> None:
    found = [played(Case(family, ranks, 2500, 600 + ranks)) for ranks in (2, 4, 8, 16)]
    assert sum(len(one.false) for one in found) <= 1, [one.false for one in found]


@pytest.mark.parametrize("trace", RECORDED, ids=lambda trace: trace.name)
def test_jobs_that_really_ran(trace: Trace) -> None:
    """Two ranks on two shared cores: their own times vary by 15 to 45 % from step to step."""
    layout = Layout({JobRank(0): NodeRank(0), JobRank(1): NodeRank(0)})
    found = [told for told in judge([*read(trace)], layout) if told.blamed]
    cause = SlowCause.DATA if trace.load else SlowCause.COMPUTE
    assert [(one.cause, one.blamed) for one in found] == [(cause, (1,))] * (trace.onset > 0)
    assert all(one.since >= trace.onset - 10 for one in found), "a sum may have begun to rise by chance"
