"""One HSDP job that loses a rank a hundred times: `python -m tests.sharded.endurance --kills 100 --json`.

Four ranks, 2 × 2. Rank 0 survives all kills and counts its resources: descriptors, threads, memory, torch's groups,
works in torch's registry, files in shared memory. The others die at random moments of random steps. At the end the job
must have the weights, the optimizer and the losses of an undisturbed one, except for records that a dying rank had not
written yet. Every recovery must have been in place, and no count may have grown.
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.census import first_and_last, grown
from tests.scripts.catalog import Script
from tests.scripts.play import play
from tests.sharded.killing import main
from tests.sharded.scenes import Kill, Scene

EVERY = 6
"""Number of steps from one kill to the next."""
MOMENTS = (
    ("step", 1),
    ("into backward", 2),
    ("in an all-gather", 6),
    ("in a reduction", 2),
    ("between parts", 2),
    ("before an all-reduce", 1),
    ("between optimizer and commit", 1),
    ("committed", 1),
)
"""Moments, each with its smallest number in a step."""


def kills(count: int, seed: int) -> tuple[Kill, ...]:
    """Draw kills of ranks 1 to 3, one after the other."""
    chance = Random(seed)
    found = []
    for number in range(count):
        moment, most = chance.choice(MOMENTS)
        found.append(Kill(chance.randint(1, 3), EVERY * (number + 1), moment, chance.randint(1, most)))
    return tuple(found)


def judge(count: int, seed: int, folder: Path, limit_s: float) -> dict[str, Any]:
    """Play the job without kills and with them."""
    scene = Scene("endurance", "hsdp", kills(count, seed))
    more = (("SCENE_STEPS", str(EVERY * (count + 2))), ("SCENE_CENSUS", "1"))

    def script(*, killed: bool) -> Script:
        found = scene.script(kills=killed)
        return Script(**{**vars(found), "environment": (*found.environment, *more), "restarts": 10 * count})

    reference = play(script(killed=False), folder / "undisturbed", taskd=False, limit_s=limit_s)
    run = play(script(killed=True), folder / "killed", taskd=True, limit_s=limit_s)
    recovered = run.named("recovered")
    census = [json.loads(line) for line in (folder / "killed" / "census").read_text().splitlines()]
    figures = first_and_last([{key: one[key] for key in one if key not in ("step", "pid")} for one in census])
    not_flat = grown({"rank 0": figures})
    took_ms = sorted(record["phases_ms"].get("total", 0.0) for record in recovered)
    return {
        "kills": len(list((folder / "killed").glob("killed-*"))),
        "recovered": len(recovered),
        "restarted": sum(record["restart"] for record in recovered),
        "redone": sum(record["steps_redone"] for record in recovered),
        "wrong": int(run.status != 0 or not reference.results or run.results != reference.results),
        "losses": sum(
            run.saw[rank].get(step, seen) != seen
            for rank in reference.saw
            for step, seen in reference.saw[rank].items()
        ),
        "processes_of_rank_0": len({one["pid"] for one in census}),
        "not_flat": not_flat,
        "figures": figures,
        "median_ms": round(took_ms[len(took_ms) // 2]) if took_ms else None,
        "seconds": round(run.seconds),
        "folder": str(folder),
    }


def good(found: dict[str, Any], count: int) -> bool:
    """Return whether all results are as required."""
    bad = ("restarted", "redone", "wrong", "losses", "not_flat")
    return found["kills"] == count and found["processes_of_rank_0"] == 1 and not any(found[name] for name in bad)


if __name__ == "__main__":
    sys.exit(main("endurance", __doc__ or "", 100, judge, good))
