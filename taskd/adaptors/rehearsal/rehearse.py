"""A rehearsal from its command line to its verdict.

Rules:

1. The script is run twice undisturbed under stock torchrun, then under taskd with kills. If it is not exact, and
   something that it changes is to blame, it runs once more undisturbed, line by line. With kills the job checks itself,
   and goes on in place whatever it finds. Its findings are the reason if the kills show that something is not exact.
2. A command line that is not torchrun's on one node with so many ranks is refused before anything runs.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from taskd.adaptors.torchrun.isolation import isolated
from taskd.core.rehearsal import kills
from taskd.core.rehearsal.findings import ScriptFinding
from taskd.core.rehearsal.kills import Kill, Seen
from taskd.core.rehearsal.records import RankRecord
from taskd.core.rehearsal.verdict import Outcome, Rehearsed, Verdict, judge, of_noise, of_undisturbed, suspects
from taskd.errors import RehearsalError
from taskd.runtime.rehearsal.job import RehearsalJob, RehearsedRun, last_lines
from taskd.runtime.rehearsal.order import RehearsalOrder
from taskd.runtime.rehearsal.workspace import Workspace

LEAST: Final = 12
_AFTER_S: Final = 20.0
_TRACED: Final = 5
_USUAL_RANKS: Final = "2"
_ABORTS: Final = "terminate called without an active exception"
_ERROR: Final = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """The script to be rehearsed.

    Attributes:
        name: as the user named it.
        options: torchrun's.
        program: the script with its arguments, as it is started in the copy.
        ranks: how many.
    """

    name: str
    options: tuple[str, ...]
    program: tuple[str, ...]
    ranks: int


@dataclass(frozen=True)
class RehearsalReport:
    """The result of a rehearsal."""

    script: Script
    verdict: Verdict
    steps: int = 0
    killed: tuple[Kill, ...] = ()
    in_place: int = 0
    lines: int = 0
    seconds: float = 0.0
    output: str = field(default="", repr=False)


def parse(arguments: Sequence[str]) -> Script:
    """Parse torchrun's command line for one node, with two ranks unless it specifies another number.

    Raises:
        RehearsalError: it is for several nodes, or the program is no Python script that torchrun starts.
        SystemExit: torchrun cannot parse it, and has reported so.
    """
    with isolated():
        from torch.distributed.run import determine_local_world_size, get_args_parser
    given = get_args_parser().parse_args(list(arguments))
    options = list(arguments[: len(arguments) - len(given.training_script_args) - 1])
    if given.nnodes not in ("1", "1:1"):
        raise RehearsalError(
            f"found --nnodes={given.nnodes}, expected one node: a rehearsal runs on this machine alone"
        )
    if given.no_python:
        raise RehearsalError("found --no-python, expected a Python script: nothing is seen of other programs")
    if not any(word.replace("_", "-").startswith("--nproc-per-node") for word in options):
        options.insert(0, f"--nproc-per-node={_USUAL_RANKS}")
        given.nproc_per_node = _USUAL_RANKS
    script = given.training_script
    if not given.module:
        if not Path(script).is_file():
            raise RehearsalError(f"found no script {script}, expected a file")
        if (path := Path(script).resolve()).is_relative_to(here := Path.cwd().resolve()):
            script = str(path.relative_to(here))
        else:
            script = str(path)
    program = (script, *given.training_script_args)
    ranks = determine_local_world_size(given.nproc_per_node)
    return Script(given.training_script, (*options, "--standalone"), program, ranks)


def rehearse(
    script: Script, steps: int, limit_s: float, shared: Sequence[str], tell: Callable[[str], None]
) -> RehearsalReport:
    """Rehearse the script in a copy of the working directory. `tell` receives each stage as it starts.

    Raises:
        RehearsalError: the directory cannot be copied.
    """
    begun_s = time.monotonic()
    place = Workspace(Path.cwd(), shared)
    try:
        report = _Rehearsal(
            script, place, RehearsalJob(place, script.options, script.program, script.ranks, limit_s), steps, tell
        ).play()
    finally:
        place.close()
    return replace(report, seconds=time.monotonic() - begun_s)


class _Rehearsal:
    def __init__(
        self, script: Script, place: Workspace, job: RehearsalJob, steps: int, tell: Callable[[str], None]
    ) -> None:
        self._script, self._place, self._job, self._steps, self._tell = script, place, job, steps, tell

    def play(self) -> RehearsalReport:
        """Do all runs that a verdict needs."""
        self._tell("undisturbed, under stock torchrun")
        first = self._job.run(RehearsalOrder(self._steps, LEAST, _AFTER_S), taskd=False)
        verdict = of_undisturbed(first.records, _error(first))
        if verdict is not None:
            return self._report(verdict, first)
        steps = min(record.committed for record in first.records.values())
        ends = first.status == 0
        self._tell("the same again")
        order = RehearsalOrder(steps + ends, steps, _AFTER_S)
        again = self._job.run(order, taskd=False)
        verdict = of_noise(first.records, again.records)
        if verdict is None and (error := _error(again)):
            verdict = Verdict(
                Outcome.UNKNOWN, "it fails the second time, without any fault", (ScriptFinding("", error),)
            )
        if verdict is not None:
            return self._report(verdict, again, steps)
        planned = kills.plan({rank: _seen(record) for rank, record in first.records.items()}, ends=ends)
        if not planned:
            text = f"it has {steps} steps; {LEAST} are needed for kills: let it do more, or give --steps more"
            return self._report(Verdict(Outcome.UNKNOWN, "it is too short", (ScriptFinding("", text),)), again, steps)
        self._tell(f"under taskd, with {len(planned)} kills")
        more_s = first.seconds if ends else 0.0  # the last kill has the whole script run once more
        killed = self._job.run(replace(order, kills=tuple(planned)), taskd=True, more_s=more_s)
        runs = Rehearsed(first.records, again.records, killed.records, planned, killed.recoveries, _error(killed))
        if watched := suspects(runs):
            self._tell("looking for the line")
            traced = self._job.run(replace(order, last=min(steps, _TRACED), watched=tuple(watched)), taskd=False)
            runs = replace(runs, traced=traced.records)
        return self._report(judge(runs), killed, steps, runs)

    def _report(
        self, verdict: Verdict, run: RehearsedRun, steps: int = 0, runs: Rehearsed | None = None
    ) -> RehearsalReport:
        texts = self._place.as_users
        findings = tuple(ScriptFinding(texts(one.line), texts(one.found), texts(one.mend)) for one in verdict.findings)
        verdict = replace(
            verdict,
            headline=texts(verdict.headline),
            findings=findings,
            first=texts(verdict.first),
            notes=tuple(map(texts, verdict.notes)),
        )
        if runs is None:
            return RehearsalReport(self._script, verdict, steps, output=texts(last_lines(run.output)))
        numbers = {number for record in run.records.values() for number, _ in record.killed}
        return RehearsalReport(
            self._script,
            verdict,
            steps,
            tuple(kill for kill in runs.kills if kill.number in numbers),
            sum(not one.get("restart") for one in runs.in_training),
            sum(len(record.printed) for record in runs.undisturbed.values()),
            output=texts(last_lines(run.output)),
        )


def _seen(record: RankRecord) -> Seen:
    rare = record.rare
    accumulations, works = sorted(set(rare.accumulations)), sorted(set(rare.works))
    return Seen(record.committed, rare.evaluations, rare.saves, rare.ends, accumulations, works)


def _error(run: RehearsedRun) -> str:
    """Return why a run did not go as far as it should; "" if it did."""
    if run.done or _aborts_at_its_end(run):
        return ""
    if run.late:
        return f"it did not end within {run.seconds:.0f} s"
    died = next((record.facts.died["text"] for record in run.records.values() if record.facts.died), "")
    said = _ERROR.findall(run.output)
    reason = died or (said[0] if said else "")
    return f"it ends with status {run.status}{': ' if reason else ''}{reason[:300]}"


def _aborts_at_its_end(run: RehearsedRun) -> bool:
    """Return whether the run aborted after its training, as torch does now and then.

    It aborts if the interpreter ends under gloo's threads.
    """
    records = run.records.values()
    over = all(record.committed and not record.facts.died for record in records)
    return over and len({record.committed for record in records}) == 1 and _ABORTS in run.output
