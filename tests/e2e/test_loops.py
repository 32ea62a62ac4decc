"""Loops over epochs as users write them. A rank dies inside an epoch and between two, and the result is the same."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import Points, point
from tests.thorough import everyday

pytestmark = pytest.mark.slow
LOOPS = ["workers epochs", "shuffle steps", "stateful steps", "stateful epochs"]


@pytest.mark.parametrize("case", everyday(LOOPS, "workers epochs", "stateful epochs"))
def test_a_loop_over_a_loader(make_job: MakeJob, case: str) -> None:
    """The kills are inside an epoch, and between its last step and the first of the next."""
    kind, loop = case.split()

    def run(points: Points, taskd: str | None) -> list[dict[str, object]]:
        job = make_job(2).start(
            "loop.py", {"points": points, "kind": kind, "loop": loop}, env={"TASKD_PROCESS_ENABLE": taskd}
        )
        for number, where in enumerate(points, start=1):
            job.kill(where["name"])
            assert not job.recovered(number)["restart"]
        assert job.end() == 0, job.output
        return job.results()

    points = [point("inside", 1, 3, "begin"), point("between", 0, "epoch", 0), point("later", 1, "epoch", 1)]
    assert run(points, "on") == run([], None)
