"""The trial between two nodes, over healthy, slow and cut links, and with peers that die or never come."""

import signal

import pytest

from tests.nodecheck.conftest import children
from tests.shim.armed import until

pytestmark = [pytest.mark.root]
SLOW_GBPS = 0.0125
"""100 Mbit."""


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_link_that_is_well(start, per_node: int) -> None:
    sides = [start(number, per_node) for number in (0, 1)]
    for side, peer in zip(sides, ("node1", "node0"), strict=True):
        found = side.trial()
        assert (found.ok, found.cause, found.peer) == (True, "", peer)
        assert found.gbps > 0
        assert 0 < found.latency_s < found.elapsed_s
        assert len(side.results()) == per_node


def test_a_slow_link_is_a_result_and_no_failure(nodes, start, shape) -> None:
    shape(nodes[1], "100mbit")
    shape(nodes[0], "100mbit")
    for side in [start(number) for number in (0, 1)]:
        found = side.trial()
        assert found.ok, found.cause
        assert SLOW_GBPS * 0.5 < found.gbps < SLOW_GBPS * 1.05


def test_a_very_slow_link_ends_in_time(nodes, start, shape) -> None:
    shape(nodes[0], "1mbit")
    for side in [start(number) for number in (0, 1)]:
        found = side.trial()
        assert found.ok, found.cause
        assert found.gbps < SLOW_GBPS / 50


def test_two_trials_at_the_same_time(start) -> None:
    for side in [start(number, trials=2) for number in (0, 1)]:
        results = side.results()
        assert len(results) == 2
        for result in results:
            assert result.trial is not None
            assert result.trial.ok, result.trial.cause


def test_a_peer_that_never_comes(start) -> None:
    found = start(0, timeout_s=6).trial()
    assert not found.ok
    assert found.gbps == found.latency_s == 0.0
    assert found.cause == "forming the group failed: local rank 0 of node1 did not come"


def test_a_store_that_is_not_there(nodes, start) -> None:
    nodes[0].kill_all()
    found = start(1, timeout_s=6).trial()
    assert not found.ok
    assert found.cause.startswith("reaching the store failed: ")


@pytest.mark.thorough
def test_a_link_that_is_cut_before(nodes, start) -> None:
    nodes[1].cut()
    sides = [start(number, timeout_s=8) for number in (0, 1)]
    causes = [side.trial().cause for side in sides]
    assert causes[0].startswith("forming the group failed: ")
    assert causes[1].startswith("reaching the store failed: ")


def test_a_link_that_is_cut_in_the_middle(nodes, start, shape) -> None:
    shape(nodes[0], "128kbit")
    first = start(0, timeout_s=15)
    until(lambda: first.begun, "it waits for its peer, on the time that it has", 60)
    sides = [first, start(1, timeout_s=15)]
    until(lambda: sides[1].received_bytes() > 40_000, "they are in the middle", 60)
    nodes[1].cut()
    for side in sides:
        found = side.trial()
        assert not found.ok
        assert found.cause == "measuring failed: the peer or the link was silent until the time was over"
        assert found.elapsed_s <= 15


def test_a_peer_that_is_killed_in_the_middle(nodes, start, shape) -> None:
    shape(nodes[0], "256kbit")
    sides = [start(number, per_node=2, timeout_s=40) for number in (0, 1)]
    until(lambda: sides[1].received_bytes() > 40_000, "they are in the middle", 60)
    victims = children(nodes[1], sides[1].process.pid)
    nodes[1].kill(victims[-1], signal.SIGKILL)
    killed, other = sides[1].trial(), sides[0].trial()
    assert not killed.ok
    assert "signal 9 (SIGKILL)" in killed.cause
    assert "local rank 1: " in killed.cause
    assert not other.ok
    assert other.cause.startswith("all local ranks: measuring failed: ") or "local rank" in other.cause
    assert other.elapsed_s < 30, "it waited for its timeout, though the connection was closed"
