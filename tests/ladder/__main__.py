"""Play the ladder: `python -m tests.ladder --json`, or some scenes by a part of their names: `--only drain`."""

import sys
from pathlib import Path
from typing import Any

from tests.ladder.job import undisturbed
from tests.ladder.scenarios import SCENES, Scene, line, perform
from tests.playing import Play, main


def prepare(root: Path) -> Play[Scene]:
    """The same training without a fault comes first: its weights are what every scene must end with."""
    wanted = undisturbed(root / "undisturbed")

    def play(scene: Scene, folder: Path) -> tuple[dict[str, Any], str]:
        found = line(scene, *perform(scene, folder, wanted))
        return found, f"{', '.join(found['strategies']) or 'no recovery'} {found['total_ms']} ms"

    return play


if __name__ == "__main__":
    sys.exit(main("ladder", __doc__ or "", SCENES, prepare))
