"""Output of `taskd run --rehearse`: the verdict, the lines of the script that cause it, and a summary of the runs."""

import json
import sys
from typing import Any

from taskd.adaptors.rehearsal.rehearse import RehearsalReport
from taskd.core.rehearsal.kills import Moment
from taskd.core.rehearsal.verdict import Outcome
from taskd.wire import text as safe

_WORDS = {Outcome.EXACT: "exact", Outcome.INEXACT: "not exact", Outcome.UNKNOWN: "cannot be judged"}


def show(report: RehearsalReport, *, as_json: bool, with_output: bool) -> None:
    """Print the report.

    On request, or on a page without a verdict, the end of the last run's output follows on standard error.
    """
    if as_json:
        print(json.dumps(document(report)), flush=True)
    else:
        print("\n".join(safe.line(line, 1000) for line in _page(report)), flush=True)
    if with_output or (report.verdict.outcome is Outcome.UNKNOWN and not as_json):
        print(f"\nthe end of the last run's output:\n{safe.page(report.output[-3000:])}", file=sys.stderr)


def document(report: RehearsalReport) -> dict[str, Any]:
    """Return the verdict as plain values."""
    verdict = report.verdict
    return {
        "script": report.script.name,
        "verdict": _WORDS[verdict.outcome],
        "why": verdict.headline,
        "findings": [{"line": one.line, "found": one.found, "mend": one.mend} for one in verdict.findings],
        "first": verdict.first,
        "notes": list(verdict.notes),
        "ranks": report.script.ranks,
        "steps": report.steps,
        "kills": [str(kill) for kill in report.killed],
        "in_place": report.in_place,
        "seconds": round(report.seconds, 1),
    }


def _page(report: RehearsalReport) -> list[str]:
    verdict, script = report.verdict, report.script.name
    head = (
        f"{script} is {_WORDS[verdict.outcome]}"
        if verdict.outcome is not Outcome.UNKNOWN
        else f"{script} cannot be judged"
    )
    if verdict.outcome is Outcome.EXACT:
        head += f": weights, data, random numbers and {report.lines} printed lines are those of the undisturbed run"
    lines = [f"{head}: {verdict.headline}" if verdict.headline else head]
    for one in verdict.findings:
        lines.append(f"  {one.line}: {one.found}" if one.line and one.line not in one.found else f"  {one.found}")
        if one.mend:
            lines.append(f"      {one.mend}")
    if verdict.first:
        lines.append(f"  first seen: {verdict.first}")
    lines += [f"  note: {note}" for note in verdict.notes if note not in [one.found for one in verdict.findings]]
    if report.killed:
        lines.append(f"  killed: {'; '.join(map(str, report.killed))}")
    did = f"rehearsed {report.steps} steps on {report.script.ranks} ranks" if report.steps else "rehearsed"
    faults = max(report.in_place, sum(kill.moment is not Moment.BEHIND for kill in report.killed))
    kept = f", {report.in_place} of {faults} faults recovered in place" if faults else ""
    lines.append(f"  {did}{kept}, in {report.seconds:.0f} s, in copies of this directory that are gone")
    return lines
