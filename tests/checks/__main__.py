"""Play the scenarios of the node check: `python -m tests.checks --json`, those with a text in the name: `--only 3`."""

import sys
from pathlib import Path
from typing import Any

from tests.checks.scenarios import SCENARIOS, Scenario, line, perform
from tests.playing import main


def play(scenario: Scenario, folder: Path) -> tuple[dict[str, Any], str]:
    """Play one scenario on nodes of its own."""
    found = line(scenario, *perform(scenario, folder))
    return found, ", ".join(f"{check['rounds']} rounds in {check['seconds']:.1f} s" for check in found["checks"])


if __name__ == "__main__":
    sys.exit(main("nodecheck", __doc__ or "", SCENARIOS, lambda _root: play))
