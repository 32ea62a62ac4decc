"""Kill ranks while they copy their states: `python -m tests.sharded.copying --kills 200 --json`.

Two nodes with a rank each, FSDP2 over both, a copy in every step. Each kill strikes the owner of a copy, its buddy or
both at once, at a passage inside the copying. Passages are the begin of a copy, between its tensors and its seal, on
the network, and while all ranks agree. Afterwards the job must have the weights and the optimizer of an undisturbed
one, and no recovery may have started all processes anew.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.scripts.catalog import IDENTICAL, Script
from tests.scripts.play import Run, play
from tests.sharded.killing import main

PROGRAM = Path(__file__).with_name("programs") / "copying.py"
EVERY = 8
"""Smallest number of steps between two kills."""
PASSAGES = 60
"""Number of passages of the copying from which a kill chooses. A copy has about twenty."""


def kills(count: int, seed: int) -> list[dict[str, Any]]:
    """Draw the kills: the ranks, the step from which each is due, and the passage."""
    chance = Random(seed)
    victims = ([0], [1], [0, 1])
    return [
        {"step": EVERY * (number + 1), "ranks": chance.choice(victims), "passage": chance.randint(1, PASSAGES)}
        for number in range(count)
    ]


def script(chosen: list[dict[str, Any]], steps: int, mutation: str = "", nodes: int = 2) -> Script:
    """Return the job with these kills, and with a mutation of `programs.mutations` if one is named."""
    environment = (
        ("COPYING_KILLS", json.dumps(chosen)),
        ("COPYING_STEPS", str(steps)),
        ("COPYING_MUTATION", mutation),
    )
    return Script(
        "copying", (IDENTICAL,), "copies", ranks=2, nodes=nodes, restarts=1000, file=PROGRAM, environment=environment
    )


def judge(count: int, seed: int, folder: Path, limit_s: float, mutation: str = "", nodes: int = 2) -> dict[str, Any]:
    """Play the job without kills and with them."""
    steps = 3 * EVERY * (count + 12) // 2  # on a busy machine a copy takes many steps
    reference = play(script([], steps), folder / "undisturbed", taskd=False)
    run = play(script(kills(count, seed), steps, mutation, nodes), folder / "killed", taskd=True, limit_s=limit_s)
    done = len(list((folder / "killed").glob("killed-*")))
    recovered = run.named("recovered")
    where = Counter(path.read_text() for path in (folder / "killed").glob("struck-*"))
    return {
        "kills": done,
        "processes": sum(where.values()),
        "recovered": len(recovered),
        "lost": count - done + sum(record["restart"] for record in recovered) + (run.status != 0),
        "wrong": int(not _same(run, reference)),
        "most_redone": max((record["steps_redone"] for record in recovered), default=0),
        "where": dict(where.most_common()),
        "seconds": round(run.seconds),
        "folder": str(folder),
    }


def _same(run: Run, reference: Run) -> bool:
    return bool(reference.results) and run.results == reference.results


if __name__ == "__main__":
    sys.exit(main("copying", __doc__ or "", 200, judge, lambda found, _kills: not found["lost"] and not found["wrong"]))
