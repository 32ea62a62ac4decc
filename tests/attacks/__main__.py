"""Attack jobs: `python -m tests.attacks --json`, or some attacks by a part of their names: `--only store`."""

import sys
from pathlib import Path
from typing import Any

from tests.attacks.actors import ACTORS, ActorAttack
from tests.attacks.insiders import INSIDERS
from tests.attacks.job import Attack, perform, undisturbed
from tests.attacks.leftovers import LEFTOVERS
from tests.attacks.mishaps import MISHAPS
from tests.attacks.outsiders import OUTSIDERS
from tests.playing import Play, main

ATTACKS: tuple[Attack | ActorAttack, ...] = (*OUTSIDERS, *INSIDERS, *LEFTOVERS, *MISHAPS, *ACTORS)


def prepare(root: Path) -> Play[Attack | ActorAttack]:
    """The same training without an attack comes first: its weights are what every job must end with."""
    wanted = undisturbed(root / "undisturbed")

    def play(attack: Attack | ActorAttack, folder: Path) -> tuple[dict[str, Any], str]:
        if isinstance(attack, ActorAttack):
            return attack.play(folder)
        job, wrong = perform(attack, folder, wanted)
        took_ms = [round(record["phases_ms"].get("total", 0.0)) for record in job.named("recovered")]
        shown = " ".join(f"{name} {value}" for name, value in job.found.items())
        found = {"name": attack.name, "by": attack.by, "recovered_ms": took_ms, **job.found, "wrong": wrong}
        return found, f"by {attack.by} {shown}".rstrip()

    return play


if __name__ == "__main__":
    sys.exit(main("attacks", __doc__ or "", ATTACKS, prepare))
