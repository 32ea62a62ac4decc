"""Some scenarios of the ladder, as `scripts/ladder.sh` plays them. The others are too slow for the tests."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ladder.job import undisturbed
from tests.ladder.scenarios import SCENARIOS, perform
from tests.nodes_space import NodesUnavailableError

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.thorough]
PLAYED = (
    "recover, a spare waits",
    "elastic-training, shrink and grow",
    "dump",
    "node 0 lost, manager included",
    "a node of two comes back",
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Return a function for the weights of the run without a fault, by its number of ranks."""
    folder = tmp_path_factory.mktemp("plain")
    return functools.cache(lambda ranks: undisturbed(folder / f"run-{ranks}", ranks))


@pytest.mark.parametrize("name", PLAYED)
def test_scenario(name: str, weights: Callable[[int], str], run_dir: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    begun_s = time.monotonic()
    try:
        _, wrong = perform(scenario, run_dir, weights)
    except NodesUnavailableError as error:
        pytest.skip(f"no nodes on this machine: {error}")
    for path in sorted(run_dir.glob("output-*")):
        print(f"--- {path.name} ({time.monotonic() - begun_s:.0f} s)\n{path.read_text(errors='replace')[-4000:]}")
    assert not wrong
