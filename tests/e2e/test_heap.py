"""A fault costs the same however large the heap of a rank is: no code walks through it."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point
from tests.thorough import everyday


@pytest.mark.parametrize("drops", everyday([False, True], True), ids=["plain", "with a wrapper that was dropped"])
def test_no_recovery_walks_through_the_heap(make_job: MakeJob, *, drops: bool) -> None:
    job = make_job(2).start("heap.py", {"steps": 6, "drops": drops, "points": [point("one", 1, 3, "begin")]})
    job.warm()
    job.kill("one")
    record = job.recovered(1)
    assert not record["restart"]
    assert record["warm"]["1"]
    assert job.end() == 0, job.output
    results = job.results()
    assert [result["seen"] for result in results] == [[], []]
    assert len({result["weight"] for result in results}) == 1
