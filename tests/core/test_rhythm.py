"""Silence as a sign of a hang: long traces of uneven steps raise no alarm; a real hang is declared when promised."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from taskd.core.diagnosis.gaps import GAPS_OF_A_KIND, KINDS, Gaps
from taskd.core.diagnosis.rhythm import WINDOW, Activity, JobRhythm, Rhythm
from taskd.core.policy import Tempo
from taskd.wire.kinds import NodeRank

LENGTHS_S = (0.01, 0.05, 0.2, 1.0, 5.0)
HALF_AN_HOUR_S = 1800.0


@dataclass
class Trace:
    """Trace of a job's steps. Every length except `step_s` is in steps."""

    step_s: float
    seed: int = 0
    evaluation: float = 20.0
    checkpoint: float = 12.0
    slow: float = 10.0
    slow_every: int = 40
    jitter: float = 0.2

    def steps(self) -> Iterator[tuple[int, float]]:
        """Yield the number and the length of each step."""
        dice = random.Random(self.seed)
        next_slow, step = dice.randrange(1, self.slow_every), 0
        while True:
            length = 30.0 if step == 0 else dice.uniform(1 - self.jitter, 1 + self.jitter)
            length += dice.uniform(0.9, 1.1) * self.evaluation * (step > 0 and step % 50 == 0)
            length += dice.uniform(0.9, 1.1) * self.checkpoint * (step > 0 and step % 100 == 0)
            if step == next_slow:
                length += self.slow - 1
                next_slow += dice.randrange(1, 2 * self.slow_every)
            yield step, length * self.step_s
            step += 1

    def play(self, rhythm: Rhythm, until_s: float) -> tuple[float, list[str]]:
        """Feed the trace to a rhythm. Return the time at its end and all alarms."""
        rhythm.begin(0.0)
        now_s, alarms = 0.0, []
        for step, length_s in self.steps():
            now_s += length_s
            hang = rhythm.hang(now_s)
            if hang is not None:
                alarms.append(f"step {step}: {hang.reason}")
            rhythm.commit(step, now_s)
            if now_s > until_s:
                break
        return now_s, alarms


def steady(step_s: float, steps: int, rhythm: Rhythm | None = None) -> Rhythm:
    """Return a rhythm that was fed with equal steps."""
    rhythm = rhythm or Rhythm()
    rhythm.begin(0.0)
    for step in range(steps):
        rhythm.commit(step, step * step_s)
    return rhythm


@pytest.mark.parametrize("step_s", LENGTHS_S)
@pytest.mark.parametrize("seed", range(3))
def test_half_an_hour_of_uneven_steps_raises_no_alarm(step_s: float, seed: int) -> None:
    """First step 30 times as long, evaluation every 50, checkpoint every 100, occasionally a step 10 times as long."""
    _, alarms = Trace(step_s, seed).play(Rhythm(), HALF_AN_HOUR_S)
    assert alarms == []


@pytest.mark.parametrize("step_s", LENGTHS_S)
def test_the_trace_would_raise_alarms_if_nothing_were_learnt(step_s: float) -> None:
    """The trace above raises alarms with a limit of 3 x the usual step, without memory or before a rhythm is known."""
    forgetful = Tempo(slack=0.0, early_factor=3.0, floor_s=0.0)
    assert Trace(step_s).play(Rhythm(forgetful), 300.0)[1]
    hasty = Tempo(first_s=3 * step_s)
    assert Trace(step_s).play(Rhythm(hasty), 300.0)[1]


@given(
    step_s=st.floats(0.005, 8.0),
    seed=st.integers(0, 10_000),
    evaluation=st.floats(0.0, 22.0),
    checkpoint=st.floats(0.0, 12.0),
    slow_every=st.integers(5, 60),
)
@example(step_s=1.0, seed=383, evaluation=0.0, checkpoint=10.0, slow_every=5)  # a slow step coincides with a checkpoint
@example(step_s=1.0, seed=383, evaluation=1.0, checkpoint=12.0, slow_every=5)  # four slow ones at equal distances
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_trace_of_this_sort_raises_an_alarm(
    step_s: float, seed: int, evaluation: float, checkpoint: float, slow_every: int
) -> None:
    assume(1.1 * (evaluation + checkpoint) < 28)  # with a slow step, 40 usual ones: no more can be unknown
    trace = Trace(step_s, seed, evaluation, checkpoint, slow_every=slow_every)
    assert trace.play(Rhythm(), min(HALF_AN_HOUR_S, 2000 * step_s))[1] == []


@given(step_s=st.floats(0.001, 20.0), steps=st.integers(200, 400))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_hang_after_even_steps_is_declared_within_three_steps_and_two_seconds(step_s: float, steps: int) -> None:
    rhythm = steady(step_s, steps + 1)
    last_s = steps * step_s
    assert rhythm.deadline_s is not None
    assert rhythm.deadline_s - last_s == pytest.approx(max(3 * step_s, 2.0))
    assert rhythm.hang(rhythm.deadline_s - 1e-6) is None
    hang = rhythm.hang(last_s + 3 * step_s + 2.0)
    assert hang is not None
    assert hang.step == steps


@pytest.mark.parametrize("step_s", LENGTHS_S)
def test_with_evaluations_and_checkpoints_a_hang_elsewhere_is_declared_as_soon(step_s: float) -> None:
    """Once regular gaps are recognized (after four of each), they delay no alarm at other steps."""
    rhythm = Rhythm()
    trace = Trace(step_s, slow=1.0, jitter=0.1)
    now_s, alarms = trace.play(rhythm, 450.5 * step_s + 9 * 22 * step_s + 4 * 13 * step_s + 30 * step_s)
    assert alarms == []
    assert rhythm.step > 400
    assert rhythm.step % 50 not in (49, 0)
    assert rhythm.hang(now_s + 3.3 * step_s + 2.0) is not None


def test_at_a_step_where_an_evaluation_is_due_twice_its_length_is_allowed() -> None:
    rhythm, now_s = Rhythm(), 0.0
    rhythm.begin(0.0)
    for step in range(450):
        now_s += 31.0 if step > 0 and step % 50 == 0 else 1.0
        assert rhythm.hang(now_s) is None
        rhythm.commit(step, now_s)
    assert rhythm.step % 50 == 49
    assert rhythm.limit_s == pytest.approx(62.0)
    hang = rhythm.hang(now_s + 62.5)
    assert hang is not None
    assert "at this step it has taken 31 s before" in hang.reason
    rhythm.commit(450, now_s + 31.0)
    assert rhythm.limit_s == pytest.approx(3.0)


def test_a_slow_step_that_was_seen_before_is_no_hang_and_delays_the_diagnosis() -> None:
    rhythm = steady(1.0, 300)
    rhythm.commit(300, 299.0 + 10.0)
    assert rhythm.limit_s == pytest.approx(23.0)
    assert rhythm.hang(309.0 + 12.0) is None
    assert rhythm.hang(309.0 + 23.1) is not None


def test_what_was_seen_long_ago_is_forgotten() -> None:
    rhythm = steady(1.0, 300)
    rhythm.commit(300, 309.0)
    for step in range(301, 10_310):
        rhythm.commit(step, 309.0 + step - 300)
    assert rhythm.limit_s == pytest.approx(3.0)


def test_before_there_are_enough_steps_only_the_long_limit_counts() -> None:
    tempo = Tempo(first_s=100.0)
    rhythm = Rhythm(tempo)
    assert rhythm.deadline_s is None
    rhythm.begin(5.0)
    assert rhythm.deadline_s == 105.0
    rhythm = steady(1.0, tempo.few_steps, Rhythm(tempo))
    assert rhythm.limit_s == 100.0
    rhythm = steady(1.0, tempo.few_steps + 1, Rhythm(tempo))
    assert rhythm.limit_s == pytest.approx(40.0)
    assert steady(1.0, tempo.settled_steps, Rhythm(tempo)).limit_s == pytest.approx(40.0)
    assert steady(1.0, tempo.settled_steps + 1, Rhythm(tempo)).limit_s == pytest.approx(3.0)


def test_the_first_step_after_a_recovery_may_take_as_long_as_the_first_one_and_is_not_learnt() -> None:
    rhythm = steady(1.0, 300)
    rhythm.begin(400.0)
    assert rhythm.hang(700.0) is None
    rhythm.commit(300, 700.0)
    assert rhythm.limit_s == pytest.approx(3.0)


def test_an_announced_phase_has_its_own_limit_and_is_not_counted_as_a_step() -> None:
    tempo = Tempo(phase_s=500.0)
    rhythm = steady(1.0, 300, Rhythm(tempo))
    rhythm.announce(Activity.EVALUATION, 299.5)
    assert rhythm.hang(299.5 + 499.0) is None
    assert rhythm.hang(299.5 + 501.0) is not None
    rhythm.announce(Activity.TRAINING, 399.5)
    assert rhythm.limit_s == pytest.approx(3.0)
    rhythm.commit(300, 400.0)
    assert rhythm.limit_s == pytest.approx(3.0), "the 100 s were announced: no slow step"
    rhythm.announce(Activity.EVALUATION, 401.0)
    assert rhythm.limit_s == pytest.approx(300.0)
    rhythm.announce(Activity.TRAINING, 402.0)
    rhythm.announce(Activity.CHECKPOINT, 403.0)
    assert rhythm.limit_s == 500.0, "another sort"


def test_steps_that_were_not_seen_one_by_one_count_as_equal() -> None:
    rhythm = Rhythm()
    rhythm.begin(0.0)
    for step in range(0, 400, 4):
        rhythm.commit(step, step * 0.7)
    assert rhythm.usual_s == pytest.approx(0.7)
    assert rhythm.limit_s == pytest.approx(2.1)
    rhythm.commit(400, 396 * 0.7 + 9.0)
    assert rhythm.limit_s == pytest.approx(2 * (9.0 - 3 * 0.7) + 3 * 0.7)


@given(lengths=st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=600))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_memory_is_bounded_and_a_limit_never_below_the_floor(lengths: list[float]) -> None:
    rhythm, now_s = Rhythm(), 0.0
    rhythm.begin(0.0)
    for step, length_s in enumerate(lengths):
        now_s += length_s
        rhythm.commit(step, now_s)
        assert rhythm.limit_s >= rhythm.tempo.floor_s
    assert len(rhythm._usual._sorted) == len(rhythm._usual._newest) <= WINDOW
    assert rhythm._usual._sorted == sorted(rhythm._usual._newest)
    for kinds in (rhythm._gaps._regular, rhythm._gaps._irregular):
        assert len(kinds) <= KINDS
        assert all(0 < len(kind.gaps) <= GAPS_OF_A_KIND for kind in kinds)


@given(period=st.integers(2, 500), first=st.integers(0, 500), noise=st.lists(st.integers(0, 2000), max_size=6))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_four_gaps_at_equal_distances_are_regular_whatever_is_between(
    period: int, first: int, noise: list[int]
) -> None:
    regular = [first + period * number for number in range(4)]
    other = {step for step in noise if (step - first) % period}
    gaps = Gaps()
    for step in sorted({*regular, *(step for step in other if step < regular[-1])}):
        gaps.add(step, 10.0)
    assert gaps.expected_s(regular[-1] + period) == 10.0


def test_a_job_is_as_far_as_its_first_rank() -> None:
    job = JobRhythm()
    job.begin(0.0)
    for step in range(300):
        for rank in range(4):
            job.commit(NodeRank(rank), step, step + rank * 0.1)
    assert job.deadline_s == pytest.approx(299.0 + 3.0)
    assert job.hang(301.9) is None
    assert job.lagging(303.0) == []
    for step in range(300, 310):
        job.commit(NodeRank(0), step, float(step))
    assert job.hang(310.0) is None
    assert job.lagging(310.0) == [1, 2, 3]


def test_one_rank_that_announces_a_phase_is_enough_until_it_is_over() -> None:
    job = JobRhythm(Tempo(phase_s=500.0))
    job.begin(0.0)
    for step in range(300):
        job.commit(NodeRank(0), step, float(step))
        job.commit(NodeRank(1), step, float(step))
    job.announce(NodeRank(1), Activity.EVALUATION, 299.0)
    job.announce(NodeRank(0), Activity.TRAINING, 299.0)
    assert job.hang(700.0) is None
    job.announce(NodeRank(0), Activity.EVALUATION, 700.0)
    job.announce(NodeRank(1), Activity.TRAINING, 700.5)
    assert job.hang(703.9) is None
    job.announce(NodeRank(0), Activity.TRAINING, 701.0)
    assert job.hang(703.9) is None
    assert job.hang(704.1) is not None
    job.begin(800.0)
    assert job.hang(1000.0) is None
