"""Judges a script's run with kills by its undisturbed runs.

Rules:

1. The reference is the undisturbed run under stock torchrun. The undisturbed run under taskd must equal it, without a
   replaced rank. Warnings beforehand are in the output before the first kill that finds a step under way: until then
   no line of the training has run. The work between two steps that a kill has interrupted can only be reported after
   it, and explains only the absence of this work. A warning of losses with rank 0 explains nothing if another rank was
   killed. A warning by Python or torch itself explains nothing at all.
2. Equal means: every rank's results, and the values of each rank's last pass of each step.
3. All may start anew if nothing else is left. This is so when the ranks of a world die before the newcomer has its
   state, after the training function, or before the first step, when others are still in their set-up. It is also so
   when a rank was killed thrice in one step.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.scripts.catalog import FAILED, IDENTICAL, REFUSED, RESTARTED, SILENT, Script
from tests.scripts.grades import Grade
from tests.scripts.play import Run

_REPEATS = 3
"""Number of failures of a rank at one step, with the same cause, after which it is not replaced alone again."""

_NO_WARNING = re.compile(r"File |:\d+: \w*Warning: |taskd keeps it with the state")
"""Lines that are no warning: a traceback, a warning of Python, or a value that became part of the state."""
_SELF_CHECK = re.compile(r"the self-check has changed the training|the training is not exact")
_OF_RANK_0 = "running statistics are rank 0's own: if that is replaced"


@dataclass(frozen=True)
class Judgement:
    """A grade and its reason."""

    grade: Grade
    why: str
    healthy_replaced: int = 0


def difference(run: Run, reference: Run, *, missing: bool = True) -> str:
    """Return the first difference from the reference, or "". Without `missing`, compare only entries that both have."""
    for rank in reference.results:
        if rank not in run.results:
            return f"rank {rank} has no result"
        for what, mine, theirs in (
            ("result", run.results[rank], reference.results[rank]),
            ("saw", run.saw[rank], reference.saw[rank]),
        ):
            for key in [*theirs, *(key for key in mine if key not in theirs)]:
                if mine.get(key) != theirs.get(key) and (missing or (key in mine and key in theirs)):
                    return f"rank {rank} {what} {key}: {_short(mine.get(key))}, undisturbed {_short(theirs.get(key))}"
    return ""


def warned(script: Script, run: Run) -> str:
    """Return the line of the output before that kill that names a line of the script, or ""."""
    lost = any(rank == 0 for rank, _ in run.killed)
    lines = run.said_before.splitlines()
    return _naming(script, "\n".join(line for line in lines if lost or _OF_RANK_0 not in line))


def told(script: Script, run: Run) -> str:
    """Return the warning that names the line of work that a kill has left out, or ""."""
    return _naming(
        script,
        run.output,
        r" (was interrupted between the commit|stands between optimizer\.step\(\)|stands behind the commit)",
    )


def _naming(script: Script, text: str, more: str = "") -> str:
    for line in text.splitlines():
        if re.search(rf"{re.escape(script.path.name)}:\d+{more}", line) and not _NO_WARNING.search(line):
            return line.strip()
    return ""


def refused_at_once(script: Script, stock: Run) -> str:
    """Return the error of taskd's that ends the script at its own line under any launcher, or ""."""
    at_line = re.search(rf"{re.escape(script.path.name)}\", line (\d+)", stock.output)
    error = re.search(r"taskd\.errors\.\w+: .*", stock.output)
    return f"{script.path.name}:{at_line.group(1)}: {error.group()}" if at_line and error else ""


def judge_calm(calm: Run, reference: Run) -> Judgement | None:
    """Return the defect of the undisturbed run under taskd, if there is one."""
    recoveries = [event for event in calm.named("recovered") if not by_self_check(event)]
    if calm.hung:
        return Judgement(FAILED, "hangs undisturbed under taskd")
    if recoveries:
        why = f"undisturbed, but {recoveries[0].get('strategy')}: {recoveries[0].get('causes')}"
        return Judgement(FAILED, why, healthy_replaced=max(1, healthy_replaced(calm)))
    if calm.status != reference.status:
        return Judgement(
            FAILED, f"undisturbed it ends with {calm.status}, under stock torchrun with {reference.status}"
        )
    if calm.orphans:
        return Judgement(FAILED, f"undisturbed it leaves {calm.orphans}")
    different = difference(calm, reference)
    return Judgement(SILENT, f"undisturbed: {different}") if different else None


def judge(script: Script, run: Run, reference: Run) -> Judgement:
    """Judge the run with kills. A restart with other results is silent until it is compared with stock's."""
    replaced = healthy_replaced(run)
    if run.hung:
        return Judgement(FAILED, "hangs", replaced)
    if not run.events:
        return Judgement(FAILED, "taskd took no part")
    if replaced:
        return Judgement(FAILED, f"{replaced} healthy ranks were replaced", replaced)
    if run.status != reference.status:
        return Judgement(FAILED, f"ends with {run.status}, undisturbed with {reference.status}")
    if run.orphans:
        return Judgement(FAILED, f"leaves {run.orphans}")
    said, different = warned(script, run), difference(run, reference)
    if different:
        said = said or (told(script, run) if not difference(run, reference, missing=False) else "")
        return Judgement(REFUSED, f"{said}; {different}") if said else Judgement(SILENT, different)
    if restarted(run):
        return Judgement(REFUSED, said) if said else Judgement(RESTARTED, _reason(run))
    return Judgement(IDENTICAL, "")


def expected(script: Script, grade: Grade, run: Run | None) -> bool:
    """Return whether the script's own list allows this grade."""
    return grade in script.allowed or (grade is RESTARTED and run is not None and may_restart(run))


def may_restart(run: Run) -> bool:
    """Return whether nothing else was left to do."""
    orders = [event.get("order", "restart" if event.get("restart") else "") for event in run.events]
    late = "release" in orders and "restart" in orders[orders.index("release") :]
    overlapping = len({rank for rank, _ in run.killed}) > 1 and len(run.named("recovered")) < len(run.killed)
    names = ["restart" if event.get("restart") else event.get("event") for event in run.events]
    early = "first step" in names and "restart" not in names[names.index("first step") :]
    often = max(Counter(rank for rank, _ in run.killed).values(), default=0) >= _REPEATS and any(
        "without progress" in str(event.get("reason")) for event in run.named("recovered")
    )
    return late or overlapping or early or often


def restarted(run: Run) -> bool:
    """Return whether all processes started anew."""
    return any(event.get("restart") for event in run.named("recovered")) or not run.named("recovered")


def by_self_check(event: dict[str, Any]) -> bool:
    """Return whether all processes started anew because the job has detected by itself that it is not exact."""
    return bool(event.get("restart")) and bool(_SELF_CHECK.search(str(event.get("reason")))) and not event.get("causes")


def healthy_replaced(run: Run) -> int:
    """Return the number of processes that were replaced in place and not killed by the test.

    If no process was kept, all got new ones that went on from copies: none was left to give them its state.
    """
    kills = Counter(rank for rank, _ in run.killed)
    replaced: Counter[int] = Counter()
    for event in run.named("recovered"):
        if not event.get("restart") and event.get("kept", True):
            replaced.update(int(rank) for rank in event.get("replaced", ()))
    return sum((replaced - kills).values())


def _reason(run: Run) -> str:
    return "; ".join(str(event.get("reason")) for event in run.named("recovered") if event.get("restart"))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
