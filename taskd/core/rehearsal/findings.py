"""Findings of a rehearsal in a script: a line, the fault there, and its remedy.

Rules:

1. taskd's own warnings that name a line come first. For a variable or part without a warning, a separate run traces
   the line that changes it.
2. A variable of the training function begins anew at each call. Its finding has another text than that of a variable
   outside.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.rehearsal import compare
from taskd.core.rehearsal.compare import Difference, LineDifference, Run, VariableDifference, template

_PLACE: Final = re.compile(r"(/[^\s:()]+:\d+)")
_LEFT_OUT: Final = ("was interrupted between", "stands behind the commit")
_ANEW: Final = "at a fault all processes start anew"
_INEXACT: Final = re.compile(r"not exact after a (recovery|fault)")


@dataclass(frozen=True)
class ScriptFinding:
    """One reason: `file:line` ("" if none is known), the fault found there, and its remedy."""

    line: str
    found: str
    mend: str = ""


def of_moved(undisturbed: Run, traced: Run, found: Difference) -> list[ScriptFinding]:
    """Return findings on parts that the script changes between a commit and the next step."""
    moved = compare.moved_behind(undisturbed)
    findings = []
    for name in found.what:
        if name in moved:
            line = _line_of(traced, f"part:{name}", behind=True)
            text = f"{name!r} is changed here, between a commit and the next step: a fault may leave that out"
            mend = "Let it stand before state.commit(), or give it to state.after_commit(…)."
            findings.append(ScriptFinding(line, text, mend))
    return findings


def of_variables(
    variables: Sequence[VariableDifference], traced: Run, told: list[ScriptFinding]
) -> list[ScriptFinding]:
    """Return findings on variables that differ from the run without faults.

    If taskd has warned of a variable (`told`), its warning is the finding.
    """
    findings = []
    for one in variables:
        if known := of_name(one.name, told):
            findings += known
            continue
        line = _line_of(traced, f"variable:{one.name}", behind=False)
        if one.local:
            text = f"{one.name!r} goes on from step to step here, and begins anew when the function is called again"
        else:
            ranks = f"rank{'s' * (len(one.ranks) > 1)} {', '.join(map(str, one.ranks))}"
            text = f"{one.name!r} is changed here and is no part of the TrainState: on {ranks} it is another now"
        root = one.name.partition(".")[0]
        kind = "replicated" if one.replicated else "data"
        given = f'TrainState(…, {kind}={{"{root}": {root}}})'
        mend = f"Give it to the state, {given}, with state_dict() and load_state_dict(); or make it from state.step."
        findings.append(ScriptFinding(line, text, mend))
    return findings


def of_name(name: str, told: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Return taskd's warnings about a variable."""
    return [one for one in told if f"'{name.partition('.')[0]}'" in one.found]


def of_lines(lines: Sequence[LineDifference]) -> list[ScriptFinding]:
    """Return findings on lines that are missing, or were printed differently."""
    findings = []
    for one in lines:
        wanted = f"rank {one.rank}, after step {one.expected.step}: "
        wanted += (
            f"{one.instead!r} in place of {one.expected.text!r}" if one.instead else f"{one.expected.text!r} is missing"
        )
        mend = "" if one.instead else "Print it before state.commit(), or give it to state.after_commit(…)."
        findings.append(ScriptFinding(one.expected.line, wanted, mend))
    return findings


def told_in(run: Run) -> list[ScriptFinding]:
    """Return taskd's own warnings that name a line, one for each line and kind."""
    found: dict[str, ScriptFinding] = {}
    for record in run.values():
        for text in record.facts.told:
            place = _PLACE.search(text)
            if place is not None:
                found.setdefault(template(text.replace(place[1], "")) + place[1], ScriptFinding(place[1], text))
    return list(found.values())


def anew(told: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Return findings that make all processes start anew."""
    return [one for one in told if _ANEW in one.found]


def inexact(told: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Return findings of the self-check: a job refuses such a script, and a rehearsal tries it all the same."""
    return [one for one in told if _INEXACT.search(one.found)]


def is_left_out(told: ScriptFinding) -> bool:
    """Return whether a warning is about work behind a commit, which explains only changes by that work."""
    return any(words in told.found for words in _LEFT_OUT)


def _line_of(run: Run, name: str, *, behind: bool) -> str:
    """Return the line that changes a variable or part most often."""
    lines = [line for record in run.values() for line, was in record.lines.get(name, ()) if was or not behind]
    return max(dict.fromkeys(lines), key=lines.count, default="")


def three_lines(missing: Mapping[str, Any]) -> tuple[ScriptFinding, ...]:
    """Return the three lines that a script without a state needs, with the script's own names."""
    kinds: dict[str, str] = missing.get("kinds") or {}
    kinds = {name: kind for name, kind in kinds.items() if kind != "model" or "wrapper" not in kinds.values()}
    given = ", ".join(f"{name}={name}" for name in kinds) or "model=model, optimizer=optimizer"
    function = missing.get("function", "")
    at = missing.get("line", "")
    named = function not in ("", "<module>")
    where = missing.get("begins", "") if named else at
    return (
        ScriptFinding(where, f"found no TrainState, expected before the training: state = taskd.TrainState({given})"),
        ScriptFinding(
            where,
            f"expected around {function}(): @taskd.resilient(state)"
            if named
            else "expected the loop in a function: @taskd.resilient(state)",
        ),
        ScriptFinding(at, "expected as the last line of each step: state.commit()", "docs/script.md has the rest."),
    )


def distinct(findings: Iterable[ScriptFinding]) -> tuple[ScriptFinding, ...]:
    """Return each finding once."""
    found: dict[tuple[str, str], ScriptFinding] = {}
    for one in findings:
        found.setdefault((one.line, one.found), one)
    return tuple(found.values())
