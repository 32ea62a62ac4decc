"""The scripts of `examples/scripts`, the expected verdicts of their rehearsals, and a rehearsal as a user runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd.core.rehearsal.kills import Moment
from tests.e2e.job import no_outer_job
from tests.launch import environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "scripts"
PROGRAMS = Path(__file__).with_name("programs")
LIMIT_S = 540.0


@dataclass(frozen=True)
class Expected:
    """A script, whether it is exact, and the texts of the lines of which one must be named if it is not."""

    script: str
    exact: bool = True
    lines: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return self.script.removesuffix(".py")


SCRIPTS = (
    Expected("plain_loop.py"),
    Expected("epochs_with_evaluation.py"),
    Expected("amp_accumulation.py"),
    Expected("ema_scheduler.py"),
    Expected("text_stateful.py"),
    Expected("checkpoints.py"),
    Expected("mistake_loader.py", False, ("for images, labels in loader:",)),
    Expected("mistake_ema.py", False, ("self.shadow[name].mul_", "ema.update(network)")),
    Expected("mistake_counter.py", False, ("progress.seen += len(images)",)),
    Expected("mistake_behind.py", False, ("weight.clamp_(-0.1, 0.1)", "bound(network)")),
    Expected("mistake_generator.py", False, ("generator=dice",)),
    Expected("mistake_scheduler.py", False, ("state = taskd.TrainState(",)),
)


def rehearse(
    path: Path, options: Sequence[str] = (), *, arguments: Sequence[str] = (), limit_s: float = LIMIT_S
) -> tuple[int, dict[str, Any], str]:
    """Rehearse a script in its own folder. Return exit status, verdict, and other output."""
    command = [sys.executable, "-m", "taskd", "run", "--rehearse", "--json", *options, path.name, *arguments]
    usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command,
        cwd=path.parent,
        env=environment({**no_outer_job(), **usual}),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return ran.returncode, json.loads(ran.stdout) if ran.stdout else {}, ran.stderr


def wrong(expected: Expected, status: int, verdict: dict[str, Any]) -> str:
    """Return the deviation from the expected verdict; "" if there is none."""
    wanted = 0 if expected.exact else 1
    if status != wanted:
        return f"exit status {status}, expected {wanted}: {verdict.get('why')} {verdict.get('findings')}"
    if expected.exact:
        faults = sum(Moment.BEHIND.value not in kill for kill in verdict["kills"])
        came = verdict["in_place"]  # with copies, a death after the training function is in place, too
        return "" if faults and came in (faults, len(verdict["kills"])) else f"{came} of {faults} came in place"
    source = (FOLDER / expected.script).read_text().splitlines()
    for finding in verdict["findings"]:
        file, _, number = finding["line"].rpartition(":")
        if os.path.basename(file) == expected.script and any(
            text in source[int(number) - 1] for text in expected.lines
        ):
            return ""
    return f"no finding names a line with {' or '.join(expected.lines)}: {verdict['findings']}"


def one_line(expected: Expected, status: int, verdict: dict[str, Any], why: str) -> dict[str, Any]:
    """Return the line of JSON."""
    found = [finding["line"] for finding in verdict.get("findings", [])]
    verdicts = {"verdict": verdict.get("verdict"), "lines": found, "seconds": verdict.get("seconds")}
    return {"script": expected.name, "status": status, **verdicts, "right": not why, "why": why}
