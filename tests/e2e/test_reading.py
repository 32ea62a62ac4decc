"""A training function that counts batches: the count goes on, or its job starts anew at a fault."""

from pathlib import Path

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS
from tests.e2e.plan import Points, point

COUNTS = "counts.py"
CALL, OF_ITERATOR = " in enumerate(loader)", " in enumerate(iter(loader))"
"""The expression that counts the batches, and one with an iterator made beforehand, which begins anew."""


def run(make_job: MakeJob, name: str, points: Points, **env: str | None) -> tuple[list[dict[str, object]], str, bool]:
    """Run the job, and kill it at the points. Return the ranks' results, the output, and whether all started anew."""
    job = make_job(2).start(name, {"points": points}, env=env)
    restarts = False
    for number, where in enumerate(points, start=1):
        job.kill(where["name"])
        restarts = job.recovered(number)["restart"]
    assert job.end() == 0, job.output
    return job.results(), job.output, restarts


@pytest.mark.slow
def test_a_count_goes_on(make_job: MakeJob) -> None:
    """The weights are stock's, and the recovery is in place. Each rank is killed once, so both have a new process."""
    stock, _, _ = run(make_job, COUNTS, [], TASKD_PROCESS_ENABLE=None)
    results, output, restarts = run(make_job, COUNTS, [point("one", 1, 4, "begin"), point("two", 0, 6, "begin")])
    assert not restarts
    assert "counts the batches" not in output
    assert results == stock


@pytest.mark.slow
def test_a_count_that_matters(make_job: MakeJob, tmp_path: Path) -> None:
    """Refused: all start anew, with stock's weights. Allowed: in place, with other weights, and a warning."""
    text = (SCRIPTS / COUNTS).read_text()
    assert text.count(CALL) == 1
    path = tmp_path / "counts_of_iterator.py"
    path.write_text(text.replace(CALL, OF_ITERATOR))
    script, line = str(path), text[: text.index(CALL)].count("\n") + 1
    found = f"{path}:{line} counts the batches of 'loader' with 'i', and "
    stock, _, _ = run(make_job, script, [], TASKD_PROCESS_ENABLE=None)
    one = [point("one", 1, 4, "begin")]
    results, output, restarts = run(make_job, script, one)
    assert found in output
    assert restarts
    assert results == stock
    results, output, restarts = run(make_job, script, one, TASKD_INEXACT="allow")
    assert found in output
    assert ": not exact after a recovery. Count with state.step" in output
    assert not restarts
    assert results != stock
