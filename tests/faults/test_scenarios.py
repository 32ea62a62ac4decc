"""Some of the faults of `scripts/faults.sh`. The others are too slow for the tests."""

import json
from pathlib import Path

import pytest

from tests.faults.cgroups import CgroupUnavailableError
from tests.faults.job import build_native
from tests.faults.player import evidence, play
from tests.faults.scenarios import SCENARIOS
from tests.nodes_space import NodesUnavailableError

pytestmark = [pytest.mark.slow]
PLAYED = ("SIGSEGV in native code", "SIGSTOP", "another operation", "NaN loss")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library in which ranks crash."""
    return build_native(tmp_path_factory.mktemp("native"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLAYED)
def test_scenario(name: str, run_dir: Path, native: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    try:
        played = play(scenario, run_dir, native)
    except (NodesUnavailableError, CgroupUnavailableError) as error:
        pytest.skip(f"this machine cannot make it: {error}")
    print((run_dir / "report.txt").read_text(errors="replace")[-8000:])
    print(json.dumps(played.line, indent=1), json.dumps(evidence(played, run_dir))[:8000])
    assert not played.wrong


def test_names_tell_the_scenarios_apart() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names) >= 21
