"""Merging the answers of a node's processes into the node's."""

import signal

import pytest

from taskd.core.nodecheck.probes import lost, merge_own, merge_trial
from taskd.wire.checks import Own, Trial, TrialResult
from taskd.wire.kinds import LocalRank
from taskd.wire.probes import ProbeOrder, ProbeResult

TRIAL = Trial(peer="b", name="t", first=True, store_host="h", store_port=1)


def own(rank: int, *, ok: bool = True, cause: str = "", **measured) -> ProbeResult:
    return ProbeResult(local_rank=LocalRank(rank), own=Own(ok=ok, cause=cause, **measured))


def trial(rank: int, *, ok: bool = True, cause: str = "", **measured) -> ProbeResult:
    return ProbeResult(local_rank=LocalRank(rank), trial=TrialResult(peer="b", ok=ok, cause=cause, **measured))


def test_the_slowest_rank_counts_and_what_was_not_measured_does_not() -> None:
    merged = merge_own(
        [
            own(0, compute_tflops=2.0, memory_gbps=9.0, loopback_gbps=3.0, disk_mbps=100.0, elapsed_s=0.4),
            own(1, compute_tflops=1.5, memory_gbps=10.0, elapsed_s=0.5),
        ]
    )
    assert merged == Own(
        ok=True, compute_tflops=1.5, memory_gbps=9.0, loopback_gbps=3.0, disk_mbps=100.0, elapsed_s=0.5
    )


def test_one_failure_fails_the_node_and_is_told_with_its_ranks() -> None:
    merged = merge_own([own(0, cause="a note"), own(1, ok=False, cause="x"), own(2, ok=False, cause="x"), own(3)])
    assert merged is not None
    assert (merged.ok, merged.cause) == (False, "local ranks 1, 2: x")


@pytest.mark.parametrize(
    ("causes", "told"),
    [
        (["x"], "x"),
        (["x", "x"], "all local ranks: x"),
        (["x", "y"], "local rank 0: x; local rank 1: y"),
        (["a", "b", "c", "d", "e"], "local rank 0: a; local rank 1: b; local rank 2: c; and 2 more"),
    ],
)
def test_causes(causes: list[str], told: str) -> None:
    for merge, make in ((merge_own, own), (merge_trial, trial)):
        merged = merge([make(rank, ok=False, cause=cause) for rank, cause in enumerate(causes)])
        assert merged is not None
        assert merged.cause == told


def test_versions_that_differ_are_all_told() -> None:
    merged = merge_own([own(0, versions={"device": "B", "torch": "2"}), own(1, versions={"device": "A", "torch": "2"})])
    assert merged is not None
    assert merged.versions == {"device": "A / B", "torch": "2"}


def test_a_trial_that_failed_has_no_rate() -> None:
    good = trial(0, gbps=2.0, latency_s=0.1, elapsed_s=1.0)
    assert merge_trial([good, trial(1, gbps=1.9, latency_s=0.2, elapsed_s=0.5)]) == TrialResult(
        peer="b", ok=True, gbps=1.9, latency_s=0.2, elapsed_s=1.0
    )
    assert merge_trial([good, trial(1, ok=False, cause="cut", elapsed_s=3.0)]) == TrialResult(
        peer="b", ok=False, cause="local rank 1: cut", elapsed_s=3.0
    )


def test_nobody_was_asked() -> None:
    assert merge_own([trial(0)]) is None
    assert merge_trial([own(0)]) is None
    assert merge_own([]) is None


def test_a_process_that_has_ended_without_an_answer() -> None:
    order = ProbeOrder(own=True, trial=TRIAL, local_rank=LocalRank(1), local_world_size=2, timeout_s=7)
    result = lost(order, -signal.SIGKILL, 1.25)
    assert result.own is not None
    assert result.trial is not None
    assert not result.own.ok
    assert not result.trial.ok
    cause = "its check process ended with signal 9 (SIGKILL) after 1.25 s, before it had answered"
    assert result.own.cause == result.trial.cause == cause
    assert result.trial.peer == "b"
    merged = merge_own([own(0, compute_tflops=1.0), result])
    assert merged is not None
    assert merged.cause == "local rank 1: " + cause
    late = lost(order, None, 9.0)
    assert late.own is not None
    assert "had not answered after 9 s and was killed" in late.own.cause
    assert "within 7 s" in late.own.cause


def test_only_what_was_asked_for_is_answered() -> None:
    assert lost(ProbeOrder(own=True), 1, 0.0).trial is None
    assert lost(ProbeOrder(trial=TRIAL), 1, 0.0).own is None
