"""Every benchmark runs to its end in small, and prints the figures that the issue promises. These are not judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.census import RECORDS, first_and_last, for_each_fault, grown
from benchmarks.job import StepLogs
from benchmarks.works import EVALUATION, KINDS
from tests.benchmarks.recordable import recordable
from tests.launch import Launcher

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def last_line(launcher: Launcher, *words: str) -> dict[str, Any]:
    status, output = launcher.run(["python", "-m", *words, "--json"], cwd=ROOT, timeout_s=220)
    assert status == 0, output
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert lines, output
    return lines[-1]


@pytest.mark.thorough
def test_recovery(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.recovery", "--pairs", "1", "--ranks", "3", "--at-once", "2")
    recordable("python -m benchmarks.recovery --pairs 5 --at-once 2 --json", last)
    assert last["pairs"] == 1
    assert last["taskd_s"] > 0
    assert last["over_one"] == pytest.approx(last["at_once_s"] / last["taskd_s"], rel=0.1)
    assert last["floor_s"] > 0
    assert last["ratio"] == pytest.approx(last["torchrun_s"] / last["taskd_s"], rel=0.1)
    names = {"detect", "pause", "replace", "rebuild", "restore", "first_step", "total"}
    assert names <= set(last["phases_ms"])


@pytest.mark.thorough
def test_heap(launcher: Launcher) -> None:
    words = ["--pairs", "1", "--kills", "2", "--ranks", "2", "--objects", "100000"]
    last = last_line(launcher, "benchmarks.heap", *words)
    recordable("python -m benchmarks.heap --json", last)
    assert last["ratio"] == pytest.approx(last["with_heap_s"] / last["without_s"], rel=0.1)
    lower, upper = last["ratio_interval"]
    assert lower <= last["ratio"] <= upper
    assert len(last["with_heap_all_s"]) == len(last["without_all_s"]) == 2


@pytest.mark.thorough
def test_stock_defaults(launcher: Launcher) -> None:
    last = last_line(
        launcher, "benchmarks.recovery", "--stock-defaults", "--runs", "1", "--ranks", "2", "--limit-s", "20"
    )
    recordable("python -m benchmarks.recovery --stock-defaults --runs 20 --json", last)
    assert last["runs"] == 1
    assert last["taskd_recovered"] == 1
    assert last["stock_recovered"] in (0, 1)


@pytest.mark.thorough
def test_overhead(launcher: Launcher) -> None:
    last = last_line(
        launcher, "benchmarks.overhead", "--repeats", "1", "--pairs", "4", "--steps", "2", "--samples", "3"
    )
    recordable("python -m benchmarks.overhead --json", last)
    assert last["pairs"] == 4
    assert last["commit_us"] > 0
    assert last["constructor_us"] > 0
    assert abs(last["step_overhead"]) < 10


@pytest.mark.thorough
def test_idle(launcher: Launcher) -> None:
    words = ["--ranks", "2", "--windows", "1", "--window-s", "2", "--settle-s", "0"]
    last = last_line(launcher, "benchmarks.idle", *words)
    recordable("python -m benchmarks.idle --json", last)
    assert 0 <= last["stock_share"] < 0.2
    assert 0 < last["agent_share"] < 0.2
    assert last["private_mb"] == pytest.approx(sum(last["private_each_mb"]), abs=0.2)
    assert len(last["private_each_mb"]) == 3  # a template, a standby, and the one in reserve


@pytest.mark.thorough
def test_soak(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.soak", "--faults", "2", "--ranks", "2")
    recordable("python -m benchmarks.soak --faults 200 --json", last)
    assert last["faults"] == last["recovered"] == 2
    assert last["weights_identical"] is True
    for name in ("fds", "threads", "rss_mb"):
        assert len(last[name]) == len(last["agent"][name]) == len(last["manager"][name]) == 2


@pytest.mark.thorough
def test_soak_among_hostile_neighbours(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.soak", "--faults", "3", "--ranks", "2", "--hostile")
    assert last["faults"] == last["recovered"] == 3
    assert last["weights_identical"] is True
    assert (last["not_flat"], last["idle"]) == ([], [])
    assert min(last["hostile"]["refused"][kind] for kind in ("handshake", "identity")) > 0


def test_what_grows_is_named() -> None:
    flat = [{"fds": 20 + number % 3, "rss_mb": 100 + number % 5} for number in range(40)]
    leaking = [{"fds": 20 + number, "rss_mb": 100 + number % 5} for number in range(40)]
    told = [{"faults": number, "lines": 3 * number} for number in range(40)]
    flooded = [{"faults": number, "lines": number**2} for number in range(40)]
    assert grown({"agent": first_and_last(flat), RECORDS: for_each_fault(told)}) == []
    assert grown({"agent": first_and_last(leaking)}) == ["agent fds 21.5 -> 57.5"]
    assert grown({RECORDS: for_each_fault(flooded)}) == [f"{RECORDS} lines 3 -> 75"]


@pytest.mark.thorough
def test_large_ranks(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.recovery", "--rss-gib", "0.1", "--pairs", "1", "--ranks", "2")
    recordable("python -m benchmarks.recovery --rss-gib 1 --json", last)
    assert last["pairs"] == 1
    assert last["share"] == pytest.approx(last["with_shim_s"] / last["without_shim_s"], rel=0.1)
    assert 1.5 < last["hang_to_diagnosis_s"] < 60  # 2 s after the last progress; the stop comes later
    assert last["diagnosis_to_step_s"] > 0
    assert set(last["phases_ms"]) == {"with", "without", "stopped"}


def test_uneven_steps_in_virtual_time(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.soak", "--uneven", "--virtual", "--seeds", "1")
    assert last["alarms"] == 0
    assert last["hours"] == 1.5
    assert min(last["evaluations"], last["checkpoints"], last["slow_steps"]) > 100


@pytest.mark.thorough
def test_foreign_work_in_virtual_time(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.soak", "--foreign", "--virtual", "--seed", "1")
    recordable("python -m benchmarks.soak --foreign --virtual --json", last)
    assert (last["hours"], last["proven"], last["replaced"], last["restarts"]) == (24, 0, 0, 0)
    assert last["told"] > 0
    assert min(last[kind] for kind in (*KINDS, EVALUATION)) > 20


@pytest.mark.thorough
def test_uneven_steps_of_a_job(launcher: Launcher) -> None:
    last = last_line(launcher, "benchmarks.soak", "--uneven", "--minutes", "0.2", "--ranks", "2")
    assert last["alarms"] == 0
    assert last["steps"] > 50


def write(logs: StepLogs, rank: int, *lines: str, end: str = "\n") -> None:
    with (logs.directory / f"rank-{rank}.log").open("a") as file:
        file.write("\n".join(lines) + end)


def test_the_resumed_step_is_that_of_the_world_the_killed_rank_came_back_to(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path / "steps", 2)
    write(logs, 0, "start 10 1.0", "step 10 1 2.0", "step 10 2 3.1")
    write(logs, 1, "start 11 1.0", "step 11 1 2.0")
    assert logs.resumed_s(1, 11, 3.0) is None  # no new process yet
    write(logs, 1, "start 12 4.0")
    assert logs.resumed_s(1, 11, 3.0) is None  # it has committed nothing
    write(logs, 1, "step 12 2 5", end="")
    assert logs.resumed_s(1, 11, 3.0) is None  # it is still writing
    write(logs, 1, ".0")
    assert logs.resumed_s(1, 11, 3.0) == 5.0  # the survivor had committed step 2 just after the kill


def test_a_step_counts_that_all_ranks_have_committed(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path / "steps", 2)
    write(logs, 0, "start 10 1.0", "step 10 1 2.0", "step 10 2 3.1")
    write(logs, 1, "start 11 1.0", "step 11 1 2.0", "start 12 4.0", "step 12 3 5.0")
    assert logs.resumed_s(1, 11, 3.0) is None
    write(logs, 0, "step 10 3 5.5")
    assert logs.resumed_s(1, 11, 3.0) == 5.5
