"""Pool of warm processes, with small real processes in the roles of template and standby."""

import subprocess
import time
from collections.abc import Callable

import pytest

from taskd.errors import RecoveryError
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.runtime.agent.warm_up import SDKLESS_DELAY_S, WarmUp
from taskd.wire.messages import Hello
from tests.launch import Launcher
from tests.runtime.local import LIMIT_S, Ear, start


class Nursery:
    """Pool whose templates have `threads` threads, with the means of a test to feed it."""

    def __init__(self, launcher: Launcher, ear: Ear, threads: int, wanted: int = 2) -> None:
        self.launcher = launcher
        self.ear = ear
        self.threads = threads
        self.templates: list[subprocess.Popen[bytes]] = []
        self.pool = StandbyPool(ear.server, wanted, self._start_template)

    def _start_template(self) -> int:
        self.templates.append(start(self.launcher, "member.py", self.ear.server.path, "template", self.threads))
        return self.templates[-1].pid

    def hellos(self, count: int) -> list[Peer]:
        """Hand this number of greetings to the pool."""
        peers = []
        for _ in range(count):
            peer, hello = self.ear.until(lambda _peer, message: isinstance(message, Hello))
            assert isinstance(hello, Hello)
            self.pool.hello(peer, hello)
            peers.append(peer)
        return peers

    def standbys(self, count: int) -> list["subprocess.Popen[bytes]"]:
        """Start this number of standbys, as if the template had forked them."""
        made = [start(self.launcher, "member.py", self.ear.server.path, "standby", 1) for _ in range(count)]
        self.hellos(count)
        return made

    def told(self, process: "subprocess.Popen[bytes]", end: Callable[[], object]) -> list[str]:
        """Return all messages to a process, after `end` let it end."""
        end()
        process.wait(LIMIT_S)
        return self.launcher.output(process).splitlines()


@pytest.fixture
def make(launcher: Launcher, ear: Ear) -> Callable[..., Nursery]:
    return lambda threads, wanted=2: Nursery(launcher, ear, threads, wanted)


def test_a_template_forks_what_is_missing(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    pool.open()
    assert (len(nursery.templates), pool.count, pool.pending) == (1, 0, False)
    nursery.hellos(2)
    assert pool.pending, "two and a reserve were asked for"
    nursery.standbys(3)
    assert pool.count == 3
    taken = pool.take()
    assert taken is not None
    assert pool.count == 2
    pool.refill()
    pool.refill()
    pool.refill(waiting=5)
    pool.refill(waiting=5)
    told = nursery.told(nursery.templates[0], pool.close)
    assert told == ["Fork 3", "Fork 1", "Fork 2"], "what was asked for is not asked for again"
    nursery.ear.server.drop(taken)


def test_newer_modules_replace_the_standbys(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    old = nursery.standbys(3)
    pool.import_modules(("numpy",))
    assert not pool.pending, "it imports"
    assert pool.count == 3, "meanwhile the old ones serve"
    nursery.hellos(1)
    assert [process.wait(LIMIT_S) for process in old] == [-9, -9, -9]
    assert pool.count == 0
    pool.import_modules(("numpy",))
    told = nursery.told(nursery.templates[0], pool.close)
    assert told == ["Fork 3", "Modules  numpy", "Fork 3"]


def test_a_reserve_is_made_ready_in_place_of_one_that_was_used(make: Callable[..., Nursery]) -> None:
    nursery = make(1, wanted=1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    (first,), (reserve,) = nursery.standbys(1), nursery.standbys(1)
    taken = pool.take()
    assert taken is not None
    assert taken.pid == first.pid, "the one that is ready goes first"
    pool.refill()
    (later,) = nursery.standbys(1)
    pool.close()
    nursery.ear.server.drop(taken)
    told = [nursery.told(process, lambda: None) for process in (first, reserve, later)]
    assert told == [["Prepare "], ["Prepare "], []]


def test_a_standby_for_a_rank_that_waits_prepares_nothing(make: Callable[..., Nursery]) -> None:
    nursery = make(1, wanted=1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    pool.refill(waiting=2)
    (needed,), (left,) = nursery.standbys(1), nursery.standbys(1)
    taken = pool.take()
    assert taken is not None
    pool.refill()
    pool.close()
    nursery.ear.server.drop(taken)
    assert nursery.told(needed, lambda: None) == []
    assert nursery.told(left, lambda: None) == ["Prepare "]


def test_a_ready_one_that_dies_is_replaced_by_the_reserve(make: Callable[..., Nursery]) -> None:
    nursery = make(1, wanted=1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    (first,), (reserve,) = nursery.standbys(1), nursery.standbys(1)
    first.kill()
    gone, _ = nursery.ear.until(lambda _peer, message: message is None)
    pool.gone(gone)
    pool.refill()
    pool.close()
    assert nursery.told(reserve, lambda: None) == ["Prepare "]


def test_a_template_that_imports_is_asked_only_in_a_hurry(make: Callable[..., Nursery]) -> None:
    """A message lifts its low priority."""
    nursery = make(1)
    pool = nursery.pool
    assert pool.wait_s <= 0
    pool.open()
    assert pool.wait_s > 5.0, "it is worth waiting for"
    nursery.hellos(1)
    pool.refill()
    pool.hurry()
    nursery.hellos(1)
    nursery.standbys(2)
    told = nursery.told(nursery.templates[0], pool.close)
    assert told == ["Fork 0", "Fork 3"]


def test_a_template_imports_more_before_it_forks(make: Callable[..., Nursery]) -> None:
    """Standbys without the new modules would be replaced at once."""
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    pool.import_modules(("numpy",))
    nursery.hellos(3)
    told = nursery.told(nursery.templates[0], pool.close)
    assert told == ["Modules  numpy", "Fork 3"]


def test_a_rank_that_waits_does_not_wait_for_more_imports(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(1)
    pool.import_modules(("numpy",))
    pool.refill(waiting=1)
    nursery.hellos(1)
    nursery.standbys(1)
    told = nursery.told(nursery.templates[0], pool.close)
    assert told == ["Fork 1", "Modules  numpy", "Fork 2"]


def test_a_template_with_threads_serves_itself(make: Callable[..., Nursery]) -> None:
    nursery = make(3)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    assert (pool.count, pool.pending) == (1, False)
    taken = pool.take()
    assert taken is not None
    assert taken.pid == nursery.templates[0].pid
    assert pool.count == 0
    pool.refill()
    assert len(nursery.templates) == 2, "another one follows"
    nursery.hellos(2)
    assert pool.count == 1
    assert nursery.told(nursery.templates[1], pool.close) == [], "it was not asked to fork"
    nursery.ear.server.drop(taken)


def test_a_template_that_dies_is_followed_by_another(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    nursery.templates[0].kill()
    gone, _ = nursery.ear.until(lambda _peer, message: message is None)
    pool.gone(gone)
    assert not pool.pending
    pool.refill()
    assert len(nursery.templates) == 2
    nursery.hellos(2)
    assert pool.pending
    pool.close()


def test_templates_that_fail_one_after_the_other_are_given_up(
    make: Callable[..., Nursery], caplog: pytest.LogCaptureFixture
) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    for number in range(1, 4):
        assert len(nursery.templates) == number
        nursery.hellos(1)
        nursery.templates[-1].kill()
        gone, _ = nursery.ear.until(lambda _peer, message: message is None)
        nursery.ear.heard.clear()  # drops its second greeting
        pool.gone(gone)
        pool.refill()
    assert len(nursery.templates) == 3
    assert pool.wait_s <= 0
    assert [record.getMessage()[:11] for record in caplog.records if record.levelname == "WARNING"] == ["3 templates"]
    pool.close()


def ended() -> int:
    """Return the pid of a process that never connected and was reaped."""
    process = subprocess.Popen(["true"])
    process.wait(LIMIT_S)
    return process.pid


def test_a_standby_that_never_connects_is_asked_for_again(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    pool.refill()
    pool.reaped((ended(),))
    pool.refill()
    assert nursery.told(nursery.templates[0], pool.close) == ["Fork 3", "Fork 1"]


def test_the_number_of_one_that_became_a_rank_may_come_back(make: Callable[..., Nursery]) -> None:
    """Its host has reaped it. A standby with the same number that never connects is requested again."""
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    nursery.standbys(3)
    rank = pool.take()
    assert rank is not None
    pool.became_rank(rank)
    pool.refill()
    pool.reaped((rank.pid,))
    pool.refill()
    nursery.ear.server.drop(rank)
    assert nursery.told(nursery.templates[0], pool.close) == ["Fork 3", "Fork 1", "Fork 1"]


def test_one_that_was_taken_and_became_no_rank_was_met(make: Callable[..., Nursery]) -> None:
    """It was a check process or was dismissed. It is reaped with the idle ones."""
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    nursery.standbys(3)
    taken = pool.take()
    assert taken is not None
    pool.refill()
    pool.dismiss(taken)
    pool.reaped((taken.pid,))
    pool.refill()
    assert nursery.told(nursery.templates[0], pool.close) == ["Fork 3", "Fork 1"]


def test_what_a_reaped_standby_had_said_counts_for_nothing(make: Callable[..., Nursery]) -> None:
    nursery = make(1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    late = start(nursery.launcher, "member.py", nursery.ear.server.path, "standby", 1)
    pool.reaped((late.pid,))
    nursery.hellos(1)
    assert pool.count == 0
    pool.refill()
    pool.reaped(())
    nursery.standbys(1)
    assert pool.count == 1
    assert nursery.told(nursery.templates[0], pool.close) == ["Fork 3", "Fork 1"]


def test_a_template_that_never_connects_is_followed_by_another(make: Callable[..., Nursery], ear: Ear) -> None:
    pids: list[int] = []

    def start_template() -> int:
        pids.append(ended())
        return pids[-1]

    pool = StandbyPool(ear.server, 1, start_template)
    pool.open()
    for number in range(1, 5):
        assert len(pids) == min(number, 3), "three are enough"
        pool.reaped((pids[-1],))
        pool.refill()
    assert pool.wait_s <= 0


def test_where_no_template_can_be_started_ranks_start_cold(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    def start_template() -> int:
        raise RecoveryError("no process can be had")

    pool = StandbyPool(ear.server, 1, start_template)
    for _ in range(3):
        pool.open()
        pool.refill()
        assert pool.wait_s <= 0
    assert pool.take() is None
    assert "no warm processes: no process can be had" in caplog.text


def test_a_standby_that_dies_is_not_given_out(make: Callable[..., Nursery]) -> None:
    nursery = make(1, wanted=1)
    pool = nursery.pool
    pool.open()
    nursery.hellos(2)
    (standby,) = nursery.standbys(1)
    standby.kill()
    gone, _ = nursery.ear.until(lambda _peer, message: message is None)
    pool.gone(gone)
    assert pool.count == 0
    assert pool.take() is None
    pool.close()


@pytest.mark.parametrize("wanted", [0, 1])
def test_no_template_before_it_is_time(make: Callable[..., Nursery], wanted: int) -> None:
    nursery = make(1, wanted=wanted)
    nursery.pool.refill()
    assert nursery.templates == []
    nursery.pool.open()
    assert len(nursery.templates) == wanted
    if wanted:
        nursery.hellos(2)
    nursery.pool.close()


@pytest.mark.parametrize(("first", "asked"), [("its time comes", 2), ("a step is committed", 1)])
def test_a_rank_is_asked_again_when_it_has_committed_a_step(
    make: Callable[..., Nursery], first: str, asked: int
) -> None:
    """The first query came in the middle of a long start, before it had imported everything."""
    nursery = make(1)
    rank = start(nursery.launcher, "member.py", nursery.ear.server.path, "worker", 1)
    peer, _ = nursery.ear.until(lambda _peer, message: isinstance(message, Hello))
    warm_up = WarmUp(nursery.pool, lambda: peer, lambda: True, learn=True)
    warm_up.committed(peer)
    warm_up.begin(beside_ranks=True)
    assert len(nursery.templates) == 1, "it starts with the ranks"
    if first == "its time comes":
        warm_up.look(time.monotonic() + SDKLESS_DELAY_S)
        warm_up.look(time.monotonic() + SDKLESS_DELAY_S)
    warm_up.committed(peer)
    warm_up.look(time.monotonic() + SDKLESS_DELAY_S)
    warm_up.committed(peer)
    for _ in range(asked):
        nursery.ear.until(lambda _peer, message: isinstance(message, Hello))
    assert nursery.told(rank, lambda: nursery.ear.server.drop(peer)) == ["Modules "] * asked
