"""Trains in a broken torch, with taskd on, and says whether that went as it has to."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taskd.adaptors.seams.parts import IN_CHECKPOINT
from tests.e2e.job import FOREIGN
from tests.seams.breaking import Break
from tests.seams.farm import Farm

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")
LIMIT_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """How one job ended."""

    status: int
    digest: str
    lines: list[str]
    """What was printed beside the digest."""


def play(farm: Farm, *arguments: str, on: bool = True, ranks: int = 2, restarts: int = 0) -> Outcome:
    """One job in the farm's torch, to its end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TASKD_STANDBY": "0", "PYTHONPATH": ""}
    env |= {"TASKD_PROCESS_ENABLE": "on"} if on else {}
    command = [farm.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        [*map(str, command), f"--max-restarts={restarts}", str(JOB), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    digests = re.findall(r"^digest (\w+)$", output, re.MULTILINE)
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("digest ")]
    return Outcome(process.returncode, digests[0] if len(digests) == 1 else "", lines)


@dataclass(frozen=True)
class Verdict:
    """What became of the job in one broken torch; `why` is empty if all is as it has to be."""

    broken: Break
    told: bool
    """Whether there was a warning."""
    why: str
    seconds: float


def judge(farm: Farm, breaks: Iterable[Break], expected: str) -> Iterator[Verdict]:
    """Train in each of these torches. `expected` is the digest under plain torchrun."""
    for broken in breaks:
        farm.change(broken.changes())
        began_s = time.monotonic()
        outcome = play(farm)
        yield Verdict(broken, bool(outcome.lines), _why(broken, outcome, expected), time.monotonic() - began_s)
    farm.change({})


def _why(broken: Break, outcome: Outcome, expected: str) -> str:
    shown = "\n".join(outcome.lines)
    if outcome.status or outcome.digest != expected:
        return f"status {outcome.status}, digest {outcome.digest or 'none'}, expected 0 and {expected}: {shown[-3000:]}"
    if len(outcome.lines) > 1:
        return f"{len(outcome.lines)} lines beside the digest, expected one warning: {shown[:3000]}"
    if not outcome.lines:
        return "" if broken.part is IN_CHECKPOINT else "no warning"  # this job writes none
    names_it = (broken.name or broken.seam.attribute) in shown
    return "" if names_it and shown.endswith(broken.part.otherwise) else f"the warning is another one: {shown}"
