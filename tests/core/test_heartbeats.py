"""An agent reports to a manager in its own process only changes that the manager cannot foresee, and little else."""

import pytest

from taskd.core.membership.heartbeats import SPARSE, Heartbeats, can_wait
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankStatus, Stage

BEAT_S = 0.25


class Agent:
    """Agent on virtual time that sends each report when it is due."""

    def __init__(self, *, delivers: bool = True) -> None:
        self.now_s = 100.0
        self.heartbeats = Heartbeats(BEAT_S)
        self.delivers = delivers
        self.sent_s: list[float] = []

    def live(self, length_s: float, steps_per_s: float, first: int | None = 0) -> int | None:
        """Run for `length_s`, with a step counter that starts at `first`. Return the newest step."""
        began_s, step = self.now_s, first
        while self.now_s < began_s + length_s:
            self.now_s = max(self.now_s, self.heartbeats.due_s)
            step = None if first is None else first + int((self.now_s - began_s) * steps_per_s)
            if self.heartbeats.beat(self.now_s, step):
                self.sent_s.append(self.now_s)
                self.heartbeats.sent(self.now_s, delivered=self.delivers)
        return step


def test_a_manager_elsewhere_gets_every_heartbeat() -> None:
    agent = Agent()
    agent.live(10, 0, first=None)
    assert len(agent.sent_s) == 10 / BEAT_S + 1


def test_steady_steps_are_reported_with_each_fourth_heartbeat() -> None:
    agent = Agent()
    agent.live(2, 20)
    agent.sent_s.clear()
    agent.live(10, 20, first=100)
    assert len(agent.sent_s) == 10 / BEAT_S / SPARSE


def test_the_end_of_steps_is_reported_at_the_next_look_but_one_and_their_return_at_the_next() -> None:
    agent = Agent()
    last = agent.live(4.2, 20)
    ceased_s = agent.now_s
    agent.sent_s.clear()
    agent.live(1, 0, first=last)
    assert agent.sent_s[0] <= ceased_s + 4 * BEAT_S
    went_on_s = agent.now_s
    agent.sent_s.clear()
    agent.live(1, 20, first=1000)
    assert agent.sent_s[0] <= went_on_s + 2 * BEAT_S


def test_slow_steps_are_reported_at_each_change() -> None:
    """A step longer than the interval between checks cannot be foreseen. The manager must not take it for silence."""
    agent = Agent()
    agent.live(20, 1)
    gaps_s = [later - earlier for earlier, later in zip(agent.sent_s, agent.sent_s[1:], strict=False)]
    assert max(gaps_s) <= 2 * BEAT_S


def test_what_could_not_be_sent_is_due_again() -> None:
    agent = Agent(delivers=False)
    agent.live(4, 20)
    assert len(agent.sent_s) >= 4 / (2 * BEAT_S)


def rank(stage: Stage, number: int = 0, incarnation: int = 1) -> RankStatus:
    return RankStatus(rank=JobRank(number), incarnation=incarnation, generation=1, stage=stage)


@pytest.mark.parametrize(
    ("stages", "waits"),
    [
        ((Stage.JOINED, Stage.PAUSED), True),
        ((Stage.RESTORED, Stage.JOINED), True),
        ((Stage.COMMITTED, Stage.COMMITTED), True),
        ((Stage.DEAD, Stage.JOINED), False),
        ((Stage.FINISHED, Stage.JOINED), False),
        ((Stage.DUMPED, Stage.DUMPED), False),
    ],
)
def test_news_that_nobody_waits_for_can_wait(stages: tuple[Stage, ...], waits: bool) -> None:
    before = [rank(Stage.PAUSED, number) for number in range(2)]
    now = [rank(stage, number) for number, stage in enumerate(stages)]
    assert can_wait(before, now) == waits


def test_other_processes_are_told_of_at_once() -> None:
    before = [rank(Stage.JOINED)]
    assert not can_wait(before, [rank(Stage.JOINED, incarnation=2)])
    assert not can_wait(before, [])
    assert not can_wait(before, [*before, rank(Stage.JOINED, 1)])
