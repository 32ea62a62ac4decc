"""The pace of a rank, from what its black box shows: by a box of virtual time, and by a real one."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core.diagnosis import diagnose
from taskd.core.evidence import Evidence, Pace
from taskd.runtime.blackbox import Backend, Box, Operation, Phase
from taskd.runtime.pace import Pacer, Span, covered_ns, usual
from taskd.runtime.shim import core
from taskd.wire.messages import RankPace
from tests.launch import Launcher

PROGRAM = Path(__file__).with_name("programs") / "paced.py"
MS = 1_000_000
LOOK_MS = 250


class FakeBox:
    """A box whose process lives in virtual time, in milliseconds from 1,000 on."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.step, self.step_ms, self.phase = 0, 1000.0, Phase.TRAINING
        self.backend = Backend.GLOO
        self.notes: list[list[float]] = []

    def news(self, reading: Any, events: Any, after: int) -> int:
        """As `Box.news`, with no more in the ring than the real one has."""
        reading.step, reading.step_ns, reading.phase = self.step, int(self.step_ms * MS), self.phase
        reading.events = len(self.notes)
        count = min(len(self.notes) - after, len(self.notes), len(events))
        for place in range(count):
            ticket = len(self.notes) - place
            entered_ms, left_ms = self.notes[ticket - 1]
            event = events[place]
            event.ticket, event.entered_ns, event.left_ns = ticket, int(entered_ms * MS), int(left_ms * MS)
            event.op = Operation.ALLREDUCE | self.backend << 8
        return max(count, 0)

    def enter(self) -> list[float]:
        """A collective begins; its second number is to be set when it ends."""
        self.notes.append([self.now_ms, 0])
        return self.notes[-1]

    def pass_ms(self, ms: float) -> None:
        self.now_ms += ms

    def wait(self, ms: float) -> None:
        """One collective."""
        note = self.enter()
        self.pass_ms(ms)
        note[1] = self.now_ms

    def commit(self) -> None:
        self.step, self.step_ms = self.step + 1, self.now_ms


class Watch:
    """Looks every quarter of a second of the box's time, between two things that it does."""

    def __init__(self, box: FakeBox) -> None:
        self.box, self.pacer, self.pace = box, Pacer(3), None
        self._next_ms = box.now_ms
        self.known_ms = math.inf

    pace: RankPace | None

    def look(self) -> RankPace | None:
        if self.box.now_ms >= self._next_ms:
            self._next_ms += LOOK_MS
            self.pace = self.pacer.look(self.box, int(self.box.now_ms * MS))
            if self.pace is not None:
                self.known_ms = min(self.known_ms, self.box.now_ms - 1000)
        return self.pace


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


def test_a_pace_is_known_after_six_seconds(watch: Watch) -> None:
    steps(watch, 700, own_ms=6, waited_ms=4)
    assert watch.pace is not None
    assert watch.pace.rank == 3
    assert watch.pace.step_s == pytest.approx(0.010)
    assert watch.pace.waited_s == pytest.approx(0.004)
    assert 6000 <= watch.known_ms <= 6600
    assert 600 <= watch.pace.steps <= 640


def test_slow_steps_need_ten(watch: Watch) -> None:
    steps(watch, 9, own_ms=1500, waited_ms=500)
    assert watch.pace is None
    steps(watch, 1, own_ms=1500, waited_ms=500)
    assert watch.pace is not None
    assert (watch.pace.steps, watch.pace.step_s) == (10, 2.0)
    assert watch.pace.waited_s == pytest.approx(0.5)


def test_what_overlaps_counts_once(watch: Watch) -> None:
    for _ in range(700):
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
    assert watch.pace is not None
    assert watch.pace.waited_s == pytest.approx(0.005)


def test_what_a_look_finds_open_is_read_again(watch: Watch) -> None:
    for _ in range(40):  # each step ends in a collective that a look comes into
        watch.box.pass_ms(100)
        note = watch.box.enter()
        watch.box.pass_ms(150)
        watch.pacer.look(watch.box, int(watch.box.now_ms * MS))
        watch.box.pass_ms(250)
        note[1] = watch.box.now_ms
        watch.box.commit()
        pace = watch.pacer.look(watch.box, int(watch.box.now_ms * MS))
    assert pace is not None
    assert pace.step_s == 0.5
    assert pace.waited_s == pytest.approx(0.4)


def test_one_that_never_ends_does_not_hide_the_others(watch: Watch) -> None:
    watch.box.enter()
    steps(watch, 950, own_ms=6, waited_ms=4)
    assert watch.pace is not None
    assert watch.pace.waited_s == pytest.approx(0.004), "it is not waited for any more"


def test_a_checkpoint_makes_no_rank_slow(watch: Watch) -> None:
    for _ in range(10):
        steps(watch, 100, own_ms=6, waited_ms=4)
        watch.box.pass_ms(1000)
        watch.look()
    assert watch.pace is not None
    assert watch.pace.step_s == pytest.approx(0.010)
    assert watch.pace.waited_s == pytest.approx(0.004)


def test_a_recovery_begins_anew(watch: Watch) -> None:
    steps(watch, 700, own_ms=6, waited_ms=4)
    watch.box.phase = Phase.PAUSED
    watch.box.pass_ms(300)
    assert watch.look() is None
    watch.box.phase, watch.box.step = Phase.TRAINING, 100
    watch.box.pass_ms(300)
    assert watch.look() is None
    steps(watch, 700, own_ms=1, waited_ms=9)
    assert watch.pace is not None
    assert watch.pace.waited_s == pytest.approx(0.009)


def test_another_process_begins_anew(watch: Watch) -> None:
    steps(watch, 700, own_ms=6, waited_ms=4)
    other = FakeBox()
    other.step = 700
    assert watch.pacer.look(other, int(other.now_ms * MS)) is None


@pytest.mark.parametrize("backend", [Backend.NCCL, Backend.HCCL, Backend.OTHER])
def test_collectives_that_are_not_seen_to_end_give_no_pace(watch: Watch, backend: Backend) -> None:
    watch.box.backend = backend
    steps(watch, 700, own_ms=6, waited_ms=4)
    assert watch.pace is None


def test_more_than_the_ring_holds_give_no_pace(watch: Watch) -> None:
    for _ in range(500):
        for _ in range(50):
            watch.box.wait(0.2)
        watch.box.commit()
        watch.look()
    assert watch.pace is None


def test_the_time_under_cover() -> None:
    assert covered_ns([], 0, 10) == 0
    assert covered_ns([(2, 4), (3, 6), (8, 20), (-5, 1)], 0, 10) == 1 + 4 + 2
    assert covered_ns([(1, 9), (2, 3)], 0, 10) == 8
    assert covered_ns([(11, 12), (-3, -1)], 0, 10) == 0


def test_what_is_usual_weighs_by_steps() -> None:
    spans = [Span(25, 250 * MS, 100 * MS), Span(1, 1000 * MS, 0), Span(2, 900 * MS, 0), Span(1, MS, 0)]
    step_s, waited_s = usual(spans)
    assert step_s == pytest.approx(0.010)
    assert waited_s == pytest.approx(0.004)
    step_s, waited_s = usual(Span(10, own_ms * 10 * MS + 40 * MS, 40 * MS) for own_ms in (6, 6, 6, 9, 9, 9, 12, 20))
    assert step_s == pytest.approx(0.013)
    assert step_s - waited_s == pytest.approx(0.006), "its better spans tell"
    with pytest.raises(ValueError, match="nothing"):
        usual([])


@pytest.fixture
def box(run_dir: Path) -> Iterator[Box]:
    made = Box.create(run_dir / "box")
    yield made
    made.close()


@pytest.mark.timeout(60)
def test_a_real_process(box: Box, launcher: Launcher, run_dir: Path) -> None:
    """5 ms of its own, then 5 ms in two collectives that overlap; a look costs little beside a heartbeat."""
    launcher.start(["python", PROGRAM, box.path, "5", "5"])
    pacer = Pacer(0)
    took_us: list[float] = []
    pace = _until(lambda: _timed(pacer, box, took_us))
    assert pace.waited_s / pace.step_s == pytest.approx(0.5, abs=0.15)
    assert sorted(took_us)[len(took_us) // 2] < 1000, "250 ms apart; see the figure in benchmarks/README.md"


def _timed(pacer: Pacer, box: Box, took_us: list[float]) -> RankPace | None:
    begun = time.perf_counter_ns()
    pace = pacer.look(box, time.monotonic_ns())
    took_us.append((time.perf_counter_ns() - begun) / 1000)
    return pace


def _until(look: Callable[[], RankPace | None]) -> RankPace:
    end_s = time.monotonic() + 40
    while time.monotonic() < end_s:
        pace = look()
        if pace is not None:
            return pace
        time.sleep(LOOK_MS / 1000)
    pytest.fail("no pace within 40 s")


def test_the_structs_are_what_is_unpacked() -> None:
    assert core().TASKD_VERSION > 0
    Pacer(0).look(FakeBox(), 0)


@pytest.mark.parametrize(
    ("owns_s", "culprits"),
    [
        ((0.5, 0.5, 1.0, 0.5), (2,)),
        ((0.5, 0.52, 0.75, 0.48), (2,)),  # on shared cores one that computes twice as long looks like this
        ((0.5, 0.5, 1.0, 1.0), (2, 3)),  # a slow node
        ((0.5, 0.6, 0.55, 0.45), None),
        ((0.01, 0.01, 0.02, 0.01), None),  # hardly worth a word: it is 1 % of the step
        ((0.2, 0.21, 0.3, 0.2), None),  # 9 % of the step
        ((0.9,), None),
    ],
)
def test_who_is_slow(owns_s: tuple[float, ...], culprits: tuple[int, ...] | None) -> None:
    verdict = diagnose({rank: Evidence(pace=Pace(30, 1.0, 1.0 - own_s)) for rank, own_s in enumerate(owns_s)})
    assert (verdict.culprits if verdict else None) == culprits
