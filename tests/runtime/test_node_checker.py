"""An agent's side of a node check: it receives orders, small real processes answer, die or hang, and it reports."""

import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.agent.node_checker import NodeChecker
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.checks import CheckOrder, CheckReport, CheckState, Cleared, Trial
from taskd.wire.messages import Hello
from taskd.wire.standbys import Probed
from tests.launch import Launcher
from tests.runtime.local import LIMIT_S, Ear, start


class Bench:
    """Checker whose standbys behave as the test specifies, in the order of their start."""

    def __init__(self, launcher: Launcher, ear: Ear, deaths: DeathWatch, directory: Path) -> None:
        self.launcher, self.ear, self.deaths = launcher, ear, deaths
        self.pool = StandbyPool(ear.server, 2, lambda: start(launcher, "member.py", ear.server.path, "template", 1).pid)
        self.checker = NodeChecker(self.pool, deaths, directory)

    def standbys(self, *behaviours: str) -> list["subprocess.Popen[bytes]"]:
        processes = []
        for what in behaviours:
            processes.append(start(self.launcher, "prober.py", self.ear.server.path, what))
            peer, hello = self.ear.until(
                lambda _peer, message: isinstance(message, Hello) and message.role == "standby"
            )
            assert isinstance(hello, Hello)
            self.pool.hello(peer, hello)
            self.checker.serve()
        return processes

    def until(self, done: Callable[[], object]) -> None:
        """Run the agent's loop until `done` holds."""
        end_s = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < end_s, self.checker.state
            wait_s = max(0.0, min(0.5, self.checker.due_s - time.monotonic()))
            select.select([self.ear.server.fileno(), self.deaths.fileno()], [], [], wait_s)
            heard, self.ear.heard = self.ear.heard, []
            for peer, message in [*heard, *self.ear.server.receive()]:
                if isinstance(message, Probed):
                    self.checker.hear(peer, message.result)
            for ending in self.deaths.events():
                self.checker.ended(ending)
            self.checker.expire()

    def report(self) -> CheckReport:
        """Return the final report to the manager."""
        self.until(lambda: self.found is not None and self.found.done)
        assert self.found is not None
        return self.found

    @property
    def found(self) -> CheckReport | None:
        state = self.checker.state
        return None if state is None else state.report


@pytest.fixture
def bench(launcher: Launcher, ear: Ear, run_dir: Path) -> Iterator[Bench]:
    deaths = DeathWatch()
    made = Bench(launcher, ear, deaths, run_dir)
    yield made
    made.checker.close()
    made.pool.close()
    deaths.close()


def order(number: int, *peers: str, own: bool = True, timeout_s: float = 30.0) -> CheckOrder:
    trials = tuple(
        Trial(peer=peer, name=f"check/{number}/{peer}", first=True, store_host="127.0.0.1", store_port=1)
        for peer in peers
    )
    return CheckOrder(
        job_id="job", number=number, own=own, trials=trials, timeout_s=timeout_s, clock_s=time.time() - 5.0
    )


def test_all_processes_of_a_node_make_one_report(bench: Bench) -> None:
    bench.checker.obey(order(1, "b"), 2)
    assert bench.found == CheckReport(number=1)
    bench.standbys("well", "well")
    report = bench.report()
    assert report.number == 1
    assert report.own is not None
    assert (report.own.ok, report.own.compute_tflops) == (True, 1.0), "the slower local rank counts"
    assert report.own.clock_s == pytest.approx(5.0, abs=1.0)
    assert [(trial.peer, trial.ok) for trial in report.trials] == [("b", True)]


def test_each_trial_has_processes_of_its_own_and_the_node_is_checked_once(bench: Bench) -> None:
    bench.checker.obey(order(1, "b", "c"), 1)
    processes = bench.standbys("well", "well")
    report = bench.report()
    assert [(trial.peer, trial.ok) for trial in report.trials] == [("b", True), ("c", True)]
    asked = [bench.launcher.output(process) for process in processes]
    assert asked == ["asked 0 True b\n", "asked 0 False c\n"]


def test_a_process_that_is_killed_fails_the_node_with_its_signal(bench: Bench) -> None:
    bench.checker.obey(order(1, "b"), 1)
    bench.standbys("dies")
    report = bench.report()
    assert report.own is not None
    assert not report.own.ok
    assert "SIGKILL" in report.own.cause
    assert not report.trials[0].ok


def test_one_that_hangs_is_killed_in_time_and_its_mate_soon_after_a_failure(bench: Bench) -> None:
    bench.checker.obey(order(1, "b", timeout_s=600.0), 2)
    bench.standbys("waits", "ill")
    report = bench.report()
    assert report.own is not None
    assert "no device" in report.own.cause
    assert "killed" in report.own.cause


def test_what_a_node_has_found_of_itself_outlives_its_trial(bench: Bench) -> None:
    bench.checker.obey(order(1, "b", timeout_s=600.0), 1)
    bench.standbys("stuck")
    bench.until(lambda: any(task.own is not None for task in bench.checker._tasks))
    bench.checker.obey(order(1, "b", timeout_s=0.1), 1)
    report = bench.report()
    assert report.own is not None
    assert report.own.ok
    assert [(trial.ok, trial.cause.split(" within")[0]) for trial in report.trials] == [(False, "no answer")]


def test_the_manager_may_shorten_the_time(bench: Bench) -> None:
    bench.checker.obey(order(1, timeout_s=600.0), 1)
    bench.standbys("waits")
    bench.checker.obey(order(1, timeout_s=0.1), 1)
    report = bench.report()
    assert report.own is not None
    assert not report.own.ok


def test_a_newer_order_ends_the_older_one(bench: Bench) -> None:
    bench.checker.obey(order(1, "b"), 1)
    bench.standbys("waits")
    bench.checker.obey(order(2, "c", own=False), 1)
    bench.checker.obey(order(1, "b"), 1)
    bench.standbys("well")
    report = bench.report()
    assert (report.number, report.own) == (2, None)
    assert [trial.peer for trial in report.trials] == ["c"]


def test_what_the_node_wants_is_told_until_it_is_cleared(bench: Bench) -> None:
    assert bench.checker.state is None
    bench.checker.ask_for(2, strict=True)
    assert bench.checker.state == CheckState(wants=True, strict=True)
    bench.standbys("waits")
    assert bench.checker.state == CheckState(wants=True, strict=True, ready=True)
    bench.checker.clear(Cleared())
    assert bench.checker.state == CheckState(wants=True, strict=True, cleared=True, ready=True)


def test_a_node_that_can_start_no_process_has_failed_in_time(bench: Bench) -> None:
    bench.checker.obey(order(1, "b", timeout_s=0.1), 1)
    report = bench.report()
    assert report.own is not None
    assert "no process to check it" in report.own.cause
    assert not report.trials[0].ok
