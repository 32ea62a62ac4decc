"""DDP wrappers that the training state does not hold: found, pointed at each new world, and exact."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point

pytestmark = pytest.mark.timeout(150)
STEPS = 10


@pytest.mark.parametrize("bucket_mb", [25, 0.0005])
def test_a_bare_model_in_the_state(make_job: MakeJob, bucket_mb: float) -> None:
    """Two kills, of rank 1 and of rank 0; then every rank has the weights of an undisturbed run."""
    plan = {"steps": STEPS, "bucket_mb": bucket_mb}
    undisturbed = make_job(2).start("apart.py", plan, env={"TASKD_PROCESS_ENABLE": None})
    points = [point("first", 1, 3, "begin"), point("second", 0, 6, "backward")]
    job = make_job(2).start("apart.py", {**plan, "points": points})
    for number, name in enumerate(["first", "second"], start=1):
        job.kill(name)
        assert not job.recovered(number)["restart"]
    assert job.end() == 0, job.output
    assert undisturbed.end() == 0, undisturbed.output
    assert job.results() == undisturbed.results()
