"""The trace: the same seed gives the same figures, worse luck gives worse ones, and the core decides."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trace_faults import GPU_HOURS, Cause, Fault, Kind, draw, read_mix
from benchmarks.trace_job import Job
from benchmarks.trace_meter import WASTE, Meter
from benchmarks.trace_restart import play
from benchmarks.trace_times import read_times
from taskd.core.policy import BudgetPolicy, Policy, Strategy, StrategyPolicy
from tests.benchmarks.recordable import recordable

ROOT = Path(__file__).resolve().parents[2]
HOUR_S = 3600.0
INTERVAL_S = 160.0
DEFAULT = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.EXIT)


def played(
    faults: list[Fault],
    allowed: tuple[Strategy, ...] = DEFAULT,
    *,
    spares: int = 2,
    length_s: float = 4 * HOUR_S,
    **changed: float,
) -> Job:
    times = read_times(16_384, changed)
    strategies = StrategyPolicy(allowed, dump_to=b"/shelf" if Strategy.DUMP in allowed else b"")
    policy = Policy("trace", 4, 1, strategies=strategies, budget=BudgetPolicy(max_restarts=1000))
    job = Job(policy, times, Meter(times, INTERVAL_S, times.overhead_share), spares)
    job.run(faults, length_s)
    return job


def one(kind: Kind, *, lasting: bool = False, detect_s: float = 5.0) -> Fault:
    return Fault(HOUR_S, "a cause", kind, detect_s, 0.6, lasting)


def run(*words: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.trace", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_command_prints_what_the_issue_asks_for() -> None:
    words = ("--gpus", "2048", "--days", "20", "--seeds", "2", "--places", "8")
    lines = run(*words)
    last = lines[-1]
    recordable("python -m benchmarks.trace --gpus 16384 --days 54 --mix llama3 --json", last)
    assert 0 < last["goodput_checkpoint_restart"] < last["goodput"] < 1
    assert 0 < last["ettr"] <= last["goodput"]
    assert last["seeds"] == [0, 1]
    again = run(*words)
    assert again[-1] == last
    for line, other in zip(lines[:-1], again[:-1], strict=True):
        del line["wall_s"], other["wall_s"]
        assert line == other


def test_the_core_alone() -> None:
    (last,) = run("--core-cost", "64")
    recordable("python -m benchmarks.trace --core-cost 2048 --json", last)
    assert last["manager_s"] > 0


def test_more_faults_give_less_goodput() -> None:
    words = ("--days", "10", "--seeds", "1", "--places", "8", "--spares", "64")
    few, many = run(*words)[-1], run(*words, "--rate", "4")[-1]
    assert many["faults_mean"] > 2 * few["faults_mean"]
    assert many["goodput"] < few["goodput"]
    assert many["goodput_checkpoint_restart"] < few["goodput_checkpoint_restart"]


def test_drawn_faults_come_at_the_published_rate() -> None:
    causes = read_mix("llama3")
    assert sum(cause.per_gpu_hour for cause in causes) == pytest.approx(419 / GPU_HOURS["llama3"])
    faults = draw(causes, 16_384, 540 * 24 * HOUR_S, seed=1)
    assert len(faults) == pytest.approx(4190, rel=0.05)
    assert faults == draw(causes, 16_384, 540 * 24 * HOUR_S, seed=1)
    hbm = [fault for fault in faults if fault.cause == "gpu_hbm"]
    assert sum(fault.lasting for fault in hbm) == pytest.approx(len(hbm) / 2, rel=0.15)
    assert all(1 <= fault.detect_s <= 10 for fault in hbm)


def test_a_cause_without_a_rate_gives_no_fault() -> None:
    assert draw([Cause("none", 0.0, Kind.HOST, 1.0, (1.0, 2.0))], 16_384, 9e6, seed=1) == []


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (one(Kind.DEVICE), "recover-in-place"),
        (one(Kind.DEVICE, lasting=True), "recover"),
        (one(Kind.HOST), "recover"),
        (one(Kind.NETWORK), "retry"),
        (one(Kind.NETWORK, lasting=True), "recover"),
        (one(Kind.HANG), "retry"),
        (one(Kind.HANG, lasting=True), "recover-in-place"),
        (one(Kind.BUG), "recover-in-place"),
        (one(Kind.BUG, lasting=True), "stopped: bug"),
        (one(Kind.NOTICE), "recover"),
        (one(Kind.CORRUPTION), "stopped: corruption"),
    ],
    ids=lambda value: f"{value.kind.value}{' lasting' * value.lasting}" if isinstance(value, Fault) else "",
)
def test_each_kind_of_fault_ends_as_the_core_decides(fault: Fault, outcome: str) -> None:
    job = played([fault])
    assert dict(job.outcomes) == {outcome: 1}
    assert job.meter.mode == "train"


def test_every_second_is_booked_once() -> None:
    faults = draw(read_mix("llama3"), 65_536, 40 * HOUR_S, seed=3)
    meter = played(faults, length_s=40 * HOUR_S).meter
    assert meter.useful_s + sum(meter.waste_s.values()) == pytest.approx(40 * HOUR_S)
    assert sum(meter.causes_s.values()) == pytest.approx(sum(meter.waste_s.values()))
    assert set(meter.waste_s) <= set(WASTE)
    plain = play(faults, meter.times, 40 * HOUR_S, INTERVAL_S)
    assert plain.useful_s + sum(plain.waste_s.values()) == pytest.approx(40 * HOUR_S)


def test_without_recover_a_lost_node_stops_the_job() -> None:
    without = played([one(Kind.HOST)], (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT))
    assert dict(without.outcomes) == {"stopped": 1}
    assert without.meter.waste_s["restart"] == pytest.approx(without.times.restart_s)
    assert without.meter.goodput < played([one(Kind.HOST)]).meter.goodput


def test_without_a_spare_elastic_training_goes_on_and_grows_back() -> None:
    allowed = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.ELASTIC_TRAINING, Strategy.EXIT)
    job = played([one(Kind.HOST)], allowed, spares=0, spare_back_s=3000.0)
    assert job.outcomes["elastic-training"] == 2, job.outcomes
    assert job.meter.waste_s["degraded"] > 0
    assert len(job.holders) == 4


def test_a_dump_loses_no_step() -> None:
    job = played([one(Kind.HOST)], (Strategy.DUMP,))
    assert dict(job.outcomes) == {"stopped: dump": 1}
    assert job.meter.waste_s["redone"] <= job.times.step_s


def test_a_fault_during_a_recovery_is_recovered_from() -> None:
    second = Fault(HOUR_S + 20, "another", Kind.DEVICE, 1.0, 0.1, lasting=False)
    job = played([one(Kind.DEVICE), second])
    assert sum(job.outcomes.values()) == 1
    assert job.meter.mode == "train"


def test_a_time_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="found nap_s, expected one of step_s"):
        read_times(16_384, {"nap_s": 1.0})
