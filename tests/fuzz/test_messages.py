"""A thousandth of the attacks before a release: well-typed random messages against a live manager and live agents."""

import pytest

from tests.fuzz import insider, messages


@pytest.mark.parametrize("seed", [1])
def test_a_manager_is_told_anything_by_hand(seed: int) -> None:
    report = messages.against_manager(8000, seed, direct=True)
    assert report.failures == []
    assert report.messages == report.refused + report.accepted == 8000
    assert 0.1 < report.accepted / report.messages < 0.9
    assert {"identity", "content", "unfit", "evidence"} <= report.kinds.keys()


@pytest.mark.parametrize("seed", [1])
def test_a_manager_is_told_anything_by_its_socket(seed: int) -> None:
    report = messages.against_manager(2000, seed, direct=False)
    assert report.failures == []
    assert report.refused > 0


@pytest.mark.parametrize("seed", [1])
def test_an_agent_is_told_anything(seed: int) -> None:
    report = messages.against_agent(1000, seed)
    assert report.failures == []
    assert {"order", "content"} <= report.kinds.keys()


def test_memory_that_grows_is_seen() -> None:
    assert messages.grown([50.0] * 10) == ""
    assert messages.grown([50.0, 60.0, 70.0, *[80.0] * 7]) == "", "what fills at the beginning has a bound"
    assert "grown by 25.0 MB" in messages.grown([50.0 + 5 * part for part in range(10)])


@pytest.mark.parametrize("seed", [1])
def test_a_node_of_the_job_tells_lies(seed: int) -> None:
    counts, failures = insider.run(seed, 600)
    assert failures == {}
    assert counts["accepted"] > 200
    assert counts["jobs"] > 0
    assert counts["pausing"] + counts["restarting"] > 0, "it is believed that it has lost a rank"
