"""Time that a node waits for its manager, by the need of its ranks. The test sets the clock."""

import time
from pathlib import Path

import pytest

from taskd.config.address import Address
from taskd.config.agent import AgentConfig
from taskd.config.security import Security
from taskd.core.agent import Need
from taskd.runtime.agent.job_status import JobStatus
from taskd.runtime.agent.manager_timeout import NEEDED_S, TIMES, ManagerTimeout
from taskd.wire.messages import Directive, Order

WAIT_S = 30.0


class Clock:
    """Clock of a node that checks its manager every half second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, places: int | None, order: Order = Order.RUN) -> None:
        self._now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now_s)
        config = AgentConfig(
            "job", Address("h", 9601), Security(), Path("/r"), 1, (), True, heartbeat_s=0.2, manager_wait_s=WAIT_S
        )
        self.job = JobStatus(WAIT_S)
        if places is not None:
            self.job.learn(Directive(job_id="job", sequence=1, generation=0, order=order, ranks=(), node_count=places))
        self.timeout = ManagerTimeout(config, self.job)

    def ends_after(self, need: Need, *, embedded: bool = False, answers: bool = False, trouble: str = "") -> float:
        """Return the time after which the node no longer waits, in seconds; the reason is in `why`."""
        began_s = self._now_s
        while self._now_s < began_s + 2 * WAIT_S * TIMES:
            if answers:
                self.timeout.renew()
            self.why = self.timeout.look(need, trouble or None, embedded=embedded)
            if self.why:
                return self._now_s - began_s
            self._now_s += 0.5
        return float("inf")

    def suspend(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.mark.parametrize(
    ("places", "need", "embedded", "limit_s"),
    [
        (1, Need.NOTHING, False, WAIT_S),
        (2, Need.NOTHING, False, WAIT_S * TIMES),
        (2, Need.RECOVERY, False, WAIT_S * TIMES),
        (2, Need.RELEASE, False, NEEDED_S),
        (1, Need.RECOVERY, True, NEEDED_S),
        (1, Need.NOTHING, True, WAIT_S),
    ],
)
def test_a_silent_manager(
    monkeypatch: pytest.MonkeyPatch, places: int, need: Need, embedded: bool, limit_s: float
) -> None:
    clock = Clock(monkeypatch, places=places)
    assert limit_s < clock.ends_after(need, embedded=embedded) <= limit_s + 1
    assert "no manager answers" in clock.why


def test_one_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes' ranks may need a long time to finish."""
    assert Clock(monkeypatch, places=2).ends_after(Need.RELEASE, answers=True) == float("inf")


def test_a_job_that_has_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, places=2, order=Order.FORM)
    assert clock.ends_after(Need.NOTHING, answers=True) == float("inf")
    assert NEEDED_S < clock.ends_after(Need.RECOVERY, answers=True) <= NEEDED_S + 1
    assert clock.why == "not all 2 nodes of the job have come to the manager"


def test_a_manager_that_takes_the_job_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forms the job again, and the last node may report much later. Until then, no rank gives up its state."""
    clock = Clock(monkeypatch, places=2)
    clock.job.learn(Directive(job_id="job", sequence=1, generation=0, order=Order.FORM, ranks=(), node_count=2))
    assert clock.ends_after(Need.RECOVERY, answers=True) == float("inf")


def test_one_that_refuses_the_first_words_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Clock(monkeypatch, places=None).ends_after(Need.NOTHING, trouble="another secret") == 0
    assert Clock(monkeypatch, places=1).ends_after(Need.NOTHING, trouble="another secret") > WAIT_S


def test_time_in_which_this_process_slept_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, places=1)
    clock.timeout.look(Need.RECOVERY, None, embedded=True)
    clock.suspend(3600)
    assert clock.ends_after(Need.RECOVERY, embedded=True) > NEEDED_S - 1
