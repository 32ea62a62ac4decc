"""The README's loop over epochs, unchanged: a rank dies in each of two epochs, and the result is the same."""

from pathlib import Path

import pytest

from tests.e2e.conftest import make_job  # noqa: F401 - a fixture
from tests.e2e.job import ROOT, Job
from tests.e2e.plan import point

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("programs") / "readme.py"


def test_the_loop_over_epochs(make_job: object, run_dir: Path) -> None:  # noqa: F811 - the fixture
    text = (ROOT / "README.md").read_text()
    (code,) = [part.split("```")[0] for part in text.split("```python\n")[1:] if "state.epochs(" in part]
    loop = run_dir / "loop.py"
    loop.write_text(code)

    def run(points: list[dict[str, object]], taskd: str | None) -> list[dict[str, object]]:
        job: Job = make_job(2)  # type: ignore[operator]
        job.start(str(PROGRAM), {"points": points, "loop": str(loop)}, env={"TASKD_PROCESS_ENABLE": taskd})
        for number, where in enumerate(points, start=1):
            job.kill(str(where["name"]))
            assert not job.recovered(number)["restart"]
        assert job.end() == 0, job.output
        return job.results()

    kills = [point("inside", 1, 3, "forward"), point("first of the next", 0, 5, "forward")]
    assert run(kills, "on") == run([], None)
