"""Pace of a rank from its black box: with a box of virtual time, and with a real one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.runtime.agent.pace import Pacer, covered_ns
from taskd.runtime.box.blackbox import Backend, Box, BoxPhase, Operation
from taskd.runtime.box.shim import core
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan
from tests.launch import Launcher

PROGRAM = Path(__file__).with_name("programs") / "paced.py"
MS = 1_000_000
LOOK_MS = 250


class FakeBox:
    """Box whose process lives in virtual time, in milliseconds from 1,000 on."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.step, self.step_ms, self.phase = 0, 1000.0, BoxPhase.TRAINING
        self.backend = Backend.GLOO
        self.notes: list[list[float]] = []
        self.others: dict[int, int] = {}
        """Events that are no allreduce of the backend, by ticket."""
        self.data_ms, self.work = 0.0, 0

    def news(self, reading: Any, events: Any, after: int) -> int:
        """Copy the newest events as `Box.news` does, with no more in the ring than the real one has."""
        reading.step, reading.step_ns, reading.phase = self.step, int(self.step_ms * MS), self.phase
        reading.events, reading.data_ns, reading.work = len(self.notes), int(self.data_ms * MS), self.work
        count = min(len(self.notes) - after, len(self.notes), len(events))
        for place in range(count):
            ticket = len(self.notes) - place
            entered_ms, left_ms = self.notes[ticket - 1]
            event = events[place]
            event.ticket, event.entered_ns, event.left_ns = ticket, int(entered_ms * MS), int(left_ms * MS)
            event.op = self.others.get(ticket, Operation.ALLREDUCE | self.backend << 8)
        return max(count, 0)

    def enter(self) -> list[float]:
        """Start a collective. The caller sets the second number when it ends."""
        self.notes.append([self.now_ms, 0])
        return self.notes[-1]

    def pass_ms(self, ms: float) -> None:
        self.now_ms += ms

    def wait(self, ms: float) -> None:
        """Pass `ms` in one collective."""
        note = self.enter()
        self.pass_ms(ms)
        note[1] = self.now_ms

    def wait_in(self, other: int, ms: float) -> None:
        """Pass `ms` in an event of another kind."""
        self.others[len(self.notes) + 1] = other
        self.wait(ms)

    def commit(self) -> None:
        self.step, self.step_ms = self.step + 1, self.now_ms


class Watch:
    """Watcher that reads the box every quarter of a second of its time, between two of its activities."""

    def __init__(self, box: FakeBox) -> None:
        self.box, self.pacer = box, Pacer(JobRank(3))
        self.spans: list[RankSpan] = []
        self._next_ms = box.now_ms

    def look(self) -> RankSpan | None:
        if self.box.now_ms < self._next_ms:
            return None
        self._next_ms += LOOK_MS
        return self.look_now()

    def look_now(self) -> RankSpan | None:
        span = self.pacer.look(self.box, int(self.box.now_ms * MS))
        self.spans += [span] if span is not None else []
        return span


def steps(watch: Watch, count: int, own_ms: float, waited_ms: float) -> None:
    for _ in range(count):
        watch.box.pass_ms(own_ms)
        watch.look()
        watch.box.wait(waited_ms)
        watch.box.commit()
        watch.look()


@pytest.fixture
def watch() -> Watch:
    return Watch(FakeBox())


def test_a_span_has_all_steps_since_the_look_before(watch: Watch) -> None:
    steps(watch, 700, own_ms=6, waited_ms=4)
    assert {span.rank for span in watch.spans} == {3}
    assert [span.steps for span in watch.spans[1:]] == [25] * (len(watch.spans) - 1)
    assert [span.step for span in watch.spans] == list(range(watch.spans[0].step, 701, 25))
    for span in watch.spans:
        assert span.own_s == pytest.approx(0.006)
        assert span.waited_s == pytest.approx(0.004)


def test_the_first_steps_that_are_seen_give_none(watch: Watch) -> None:
    """Events before the first read are unknown."""
    for known in (None, 10):
        for _ in range(10):
            watch.box.pass_ms(6)
            watch.box.wait(4)
            watch.box.commit()
        span = watch.look_now()
        assert (span.steps if span else None) == known


def test_slow_steps_have_spans_of_one(watch: Watch) -> None:
    steps(watch, 9, own_ms=1500, waited_ms=500)
    assert {span.steps for span in watch.spans} == {1}
    assert watch.spans[-1].own_s == pytest.approx(1.5)


def test_data_and_work_are_of_the_steps_of_the_span(watch: Watch) -> None:
    steps(watch, 1, own_ms=6, waited_ms=4)
    watch.look_now()
    watch.box.data_ms, watch.box.work = 30.0, 500
    steps(watch, 10, own_ms=10, waited_ms=4)
    span = watch.look_now() or watch.spans[-1]
    assert (span.steps, span.data_s, span.work) == pytest.approx((10, 0.003, 50.0))
    assert span.own_s == pytest.approx(0.007), "without the waiting for data"


def test_what_overlaps_counts_once(watch: Watch) -> None:
    for _ in range(100):
        watch.box.pass_ms(5)
        first = watch.box.enter()
        watch.box.pass_ms(2)
        second = watch.box.enter()
        watch.look()
        watch.box.pass_ms(2)
        first[1] = watch.box.now_ms
        watch.box.pass_ms(1)
        second[1] = watch.box.now_ms
        watch.box.commit()
        watch.look()
    assert watch.spans[-1].waited_s == pytest.approx(0.005)


def test_what_a_look_finds_open_is_read_again(watch: Watch) -> None:
    for _ in range(5):  # each step ends in a collective that a read interrupts
        watch.box.pass_ms(100)
        note = watch.box.enter()
        watch.box.pass_ms(150)
        watch.look_now()
        watch.box.pass_ms(250)
        note[1] = watch.box.now_ms
        watch.box.commit()
        span = watch.look_now()
    assert span is not None
    assert span.own_s == pytest.approx(0.1)
    assert span.waited_s == pytest.approx(0.4)


def test_one_that_never_ends_does_not_hide_the_others(watch: Watch) -> None:
    watch.box.enter()
    steps(watch, 500, own_ms=6, waited_ms=4)
    assert watch.spans[-1].waited_s == pytest.approx(0.004), "it is not waited for any more"


def test_a_recovery_begins_anew(watch: Watch) -> None:
    steps(watch, 100, own_ms=6, waited_ms=4)
    watch.box.phase = BoxPhase.PAUSED
    watch.box.pass_ms(300)
    assert watch.look() is None
    watch.box.phase, watch.box.step = BoxPhase.TRAINING, 10
    watch.box.pass_ms(300)
    assert watch.look() is None
    steps(watch, 100, own_ms=1, waited_ms=9)
    assert watch.spans[-1].waited_s == pytest.approx(0.009)


def test_another_process_begins_anew(watch: Watch) -> None:
    steps(watch, 100, own_ms=6, waited_ms=4)
    other = FakeBox()
    other.step = 700
    assert watch.pacer.look(other, int(other.now_ms * MS)) is None


@pytest.mark.parametrize("backend", [Backend.NCCL, Backend.HCCL, Backend.OTHER])
def test_collectives_that_are_not_seen_to_end_give_no_spans(watch: Watch, backend: Backend) -> None:
    watch.box.backend = backend
    steps(watch, 100, own_ms=6, waited_ms=4)
    assert watch.spans == []


def test_kernels_of_nccl_are_waited_for_if_it_tells_of_them(watch: Watch) -> None:
    watch.box.backend = Backend.NCCL
    for _ in range(100):
        watch.box.pass_ms(6)
        watch.look()
        watch.box.wait(0.01)
        watch.box.wait_in(Operation.KERNEL | Backend.NCCL << 8, 4)
        watch.box.commit()
        watch.look()
    assert watch.spans[-1].waited_s == pytest.approx(0.004)
    assert watch.spans[-1].own_s == pytest.approx(0.00601)
    assert sum(span.steps for span in watch.spans) > 70, "only the first are not seen whole"
    following = Watch(FakeBox())
    following.pacer, following.box.backend = watch.pacer, Backend.NCCL
    for _ in range(100):
        following.box.wait_in(Operation.ALLREDUCE | Backend.GLOO << 8, 1)
        steps(following, 1, own_ms=6, waited_ms=4)
    assert following.spans == [], "the next process has no such plugin"


def test_more_than_the_ring_holds_gives_no_spans(watch: Watch) -> None:
    for _ in range(50):
        for _ in range(50):
            watch.box.wait(0.2)
        watch.box.commit()
        watch.look()
    assert watch.spans == []


def test_the_time_under_cover() -> None:
    assert covered_ns([], 0, 10) == 0
    assert covered_ns([(2, 4), (3, 6), (8, 20), (-5, 1)], 0, 10) == 1 + 4 + 2
    assert covered_ns([(1, 9), (2, 3)], 0, 10) == 8
    assert covered_ns([(11, 12), (-3, -1)], 0, 10) == 0


@pytest.fixture
def box(run_dir: Path) -> Iterator[Box]:
    made = Box.create(run_dir / "box")
    yield made
    made.close()


def test_a_real_process(box: Box, launcher: Launcher, run_dir: Path) -> None:
    """5 ms of its own, then 5 ms in two overlapping collectives. A read costs little compared with a heartbeat."""
    launcher.start(["python", PROGRAM, box.path, "5", "5"])
    pacer = Pacer(JobRank(0))
    took_us: list[float] = []
    span = _until(lambda: _timed(pacer, box, took_us))
    assert span.waited_s / (span.own_s + span.waited_s) == pytest.approx(0.5, abs=0.15)
    assert sorted(took_us)[len(took_us) // 2] < 1000, "250 ms apart; see the figure in benchmarks/README.md"


def _timed(pacer: Pacer, box: Box, took_us: list[float]) -> RankSpan | None:
    begun = time.perf_counter_ns()
    span = pacer.look(box, time.monotonic_ns())
    took_us.append((time.perf_counter_ns() - begun) / 1000)
    return span


def _until(look: Callable[[], RankSpan | None]) -> RankSpan:
    end_s = time.monotonic() + 40
    while time.monotonic() < end_s:
        span = look()
        if span is not None:
            return span
        time.sleep(LOOK_MS / 1000)
    pytest.fail("no span within 40 s")


def test_the_structs_are_what_is_unpacked() -> None:
    assert core().TASKD_VERSION > 0
    Pacer(JobRank(0)).look(FakeBox(), 0)
