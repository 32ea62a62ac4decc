"""Play the ladder: `python -m tests.ladder --json`, or some scenarios by a part of their names: `--only drain`."""

import functools
import sys
from pathlib import Path
from typing import Any

from tests.ladder.job import undisturbed
from tests.ladder.scenarios import SCENARIOS, Scenario, line, perform
from tests.playing import Play, main


def prepare(root: Path) -> Play[Scenario]:
    """Run the same training without a fault once for each size. Every scenario must end with its weights."""

    @functools.cache
    def wanted(ranks: int) -> str:
        return undisturbed(root / f"undisturbed-{ranks}", ranks)

    def play(scenario: Scenario, folder: Path) -> tuple[dict[str, Any], str]:
        found = line(scenario, *perform(scenario, folder, wanted))
        return found, f"{', '.join(found['strategies']) or 'no recovery'} {found['total_ms']} ms"

    return play


if __name__ == "__main__":
    sys.exit(main("ladder", __doc__ or "", SCENARIOS, prepare))
