"""One scenario of the node check, played in full if there is time; `scripts/nodecheck.sh` plays them all."""

from pathlib import Path

import pytest

from tests.checks.scenarios import SCENARIOS, perform
from tests.nodes_space import NodesUnavailableError

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.thorough]
PLAYED = ("one faulty node of 3",)


@pytest.mark.parametrize("name", PLAYED)
def test_scenario(name: str, run_dir: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    try:
        _, wrong = perform(scenario, run_dir)
    except NodesUnavailableError as error:
        pytest.skip(f"no nodes on this machine: {error}")
    for path in sorted(run_dir.glob("output-*")):
        print(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}")
    assert not wrong
