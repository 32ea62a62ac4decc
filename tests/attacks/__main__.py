"""Attack jobs: `python -m tests.attacks --json`, or only those whose names contain a text: `--only store`."""

import sys
from pathlib import Path
from typing import Any

from tests.attacks.actors import ACTORS, ActorAttack
from tests.attacks.between import BETWEEN, Between, perform_between, undisturbed_copied
from tests.attacks.insiders import INSIDERS
from tests.attacks.job import Attack, perform, undisturbed
from tests.attacks.leftovers import LEFTOVERS
from tests.attacks.mishaps import MISHAPS
from tests.attacks.outsiders import OUTSIDERS
from tests.playing import Play, main

ATTACKS: tuple[Attack | ActorAttack | Between, ...] = (
    *OUTSIDERS,
    *INSIDERS,
    *LEFTOVERS,
    *MISHAPS,
    *ACTORS,
    *BETWEEN,
)


def prepare(root: Path) -> Play[Attack | ActorAttack | Between]:
    """Run the same trainings without an attack first. Every attacked job must end with their weights."""
    wanted = undisturbed(root / "undisturbed")
    parts = undisturbed_copied(root / "undisturbed-copied")

    def play(attack: Attack | ActorAttack | Between, folder: Path) -> tuple[dict[str, Any], str]:
        if isinstance(attack, ActorAttack):
            return attack.play(folder)
        if isinstance(attack, Between):
            job, wrong = perform_between(attack, folder, parts)
        else:
            job, wrong = perform(attack, folder, wanted)
        took_ms = [round(record["phases_ms"].get("total", 0.0)) for record in job.named("recovered")]
        shown = " ".join(f"{name} {value}" for name, value in job.found.items())
        found = {"name": attack.name, "by": attack.by, "recovered_ms": took_ms, **job.found, "wrong": wrong}
        return found, f"by {attack.by} {shown}".rstrip()

    return play


if __name__ == "__main__":
    sys.exit(main("attacks", __doc__ or "", ATTACKS, prepare))
