"""Play the scenes of the node check: `python -m tests.checks --json`, or some by a part of their names: `--only 3`."""

import sys
from pathlib import Path
from typing import Any

from tests.checks.scenes import SCENES, Scene, line, perform
from tests.playing import main


def play(scene: Scene, folder: Path) -> tuple[dict[str, Any], str]:
    """One scene on nodes of its own."""
    found = line(scene, *perform(scene, folder))
    return found, ", ".join(f"{check['rounds']} rounds in {check['seconds']:.1f} s" for check in found["checks"])


if __name__ == "__main__":
    sys.exit(main("nodecheck", __doc__ or "", SCENES, lambda _root: play))
