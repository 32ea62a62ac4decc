"""Trains in a broken torch, with taskd on, and judges the result."""

import json
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from taskd.adaptors.seams.parts import IN_BUILDS, IN_CHECKPOINT
from tests.e2e.job import no_outer_job
from tests.launch import Launcher, environment
from tests.leaks import MARK
from tests.seams.breaking import Break
from tests.seams.farm import Farm

JOB = Path(__file__).with_name("job.py")
LIMIT_S = 250.0
"""Limit of a job, in seconds. On a crowded machine a job took over 60 s, and `doctor` over 110 s."""
ELSEWHERE = (IN_CHECKPOINT, IN_BUILDS)
"""Parts of the table without a use in this job, which writes no checkpoint and builds no extension."""


@dataclass(frozen=True)
class Outcome:
    """End of one job."""

    status: int
    digest: str
    lines: list[str]
    """Output besides the digest."""


def play(farm: Farm, *arguments: str, on: bool = True, restarts: int = 0) -> Outcome:
    """Run one job of two ranks in the farm's torch, to its end or to the limit."""
    mark = uuid.uuid4().hex
    usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TASKD_STANDBY": "0", "PYTHONPATH": "", MARK: mark}
    command = [str(farm.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryDirectory(prefix="taskd-seams-") as folder:
        ours = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": f"{folder}/run"} if on else {}
        launcher = Launcher(Path(folder), mark)
        process = launcher.start(
            [*command, f"--max-restarts={restarts}", JOB, *arguments], env={**no_outer_job(), **usual, **ours}
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
        with redirect_stdout(StringIO()):  # its output is the return value
            launcher.end_all()
        output = launcher.output(process)
    digests = re.findall(r"^digest (\w+)$", output, re.MULTILINE)
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("digest ", "self-check: "))]
    return Outcome(process.wait(), digests[0] if len(digests) == 1 else "", lines)


class Doctor:
    """`taskd doctor`, started at once for the farm's torch."""

    def __init__(self, farm: Farm) -> None:
        self._process = subprocess.Popen(
            [farm.python, "-m", "taskd", "doctor", "--json"],
            env=environment(no_outer_job()),
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> list[str]:
        """Return its findings on this torch, each in a job's words."""
        report = json.loads(self._process.communicate(timeout=LIMIT_S)[0])
        wrong = [one for one in report["findings"] if one["subject"] == "fits torch" and one["remedy"]]
        assert report["healthy"] == (not wrong), report
        return [one["found"].partition(": ")[2] for one in wrong]


def sentences(outcome: Outcome) -> list[str]:
    """Return the sentences of a job, without the place in torch that a logger puts before them."""
    return [line.partition("] ")[2] or line for line in outcome.lines]


@dataclass(frozen=True)
class Diagnosis:
    """Result of the job in one broken torch. `why` is empty if it is as expected."""

    broken: Break
    told: bool
    """True if there was a warning."""
    why: str
    seconds: float


def judge(farm: Farm, breaks: Iterable[Break], expected: str) -> Iterator[Diagnosis]:
    """Train in each of these torches. `expected` is the digest under plain torchrun."""
    for broken in breaks:
        farm.be(broken)
        began_s = time.monotonic()
        doctor = Doctor(farm)
        outcome = play(farm)
        said = doctor.says()
        why = _why(broken, outcome, expected) or _other(broken, outcome, said)
        yield Diagnosis(broken, bool(outcome.lines), why, time.monotonic() - began_s)
    farm.be_installed()


def _why(broken: Break, outcome: Outcome, expected: str) -> str:
    shown = "\n".join(outcome.lines)
    if outcome.status or outcome.digest != expected:
        return f"status {outcome.status}, digest {outcome.digest or 'none'}, expected 0 and {expected}: {shown[-3000:]}"
    if len(outcome.lines) > 1:
        return f"{len(outcome.lines)} lines beside the digest, expected one warning: {shown[:3000]}"
    if not outcome.lines:
        return "" if broken.part in ELSEWHERE or broken.has_other_way else "no warning"
    names_it = (broken.name or broken.seam.attribute) in shown
    return "" if names_it and shown.endswith(broken.part.otherwise) else f"the warning is another one: {shown}"


def _other(broken: Break, outcome: Outcome, said: list[str]) -> str:
    if broken.part in ELSEWHERE:
        return "" if len(said) == 1 and said[0].endswith(broken.part.otherwise) else f"the doctor says {said}"
    return "" if said == sentences(outcome) else f"the doctor says {said}, the job {sentences(outcome)}"
