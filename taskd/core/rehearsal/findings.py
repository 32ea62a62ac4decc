"""What a rehearsal has found in a script: lines, what is wrong there, and how to mend it.

Rules:

1. What taskd itself tells of the script, with its line, comes first. For what nobody tells of, the line that changes it
   was looked for in a run of its own.
2. What stands in the function that trains, and begins anew whenever that is called, is told apart from what does not.
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
    """One reason: `file:line` ("" if none is known), what was found there, and how to mend it."""

    line: str
    found: str
    mend: str = ""


def of_moved(undisturbed: Run, traced: Run, found: Difference) -> list[ScriptFinding]:
    """Parts that the script changes between a commit and the next step."""
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
    """Variables that are not what they are without a fault; one that taskd has told of is found in its words."""
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
    """What taskd has told of a variable."""
    return [one for one in told if f"'{name.partition('.')[0]}'" in one.found]


def of_lines(lines: Sequence[LineDifference]) -> list[ScriptFinding]:
    """Lines that are missing, or were printed otherwise."""
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
    """taskd's own warnings that name a line, one for each line and kind."""
    found: dict[str, ScriptFinding] = {}
    for record in run.values():
        for text in record.facts.told:
            place = _PLACE.search(text)
            if place is not None:
                found.setdefault(template(text.replace(place[1], "")) + place[1], ScriptFinding(place[1], text))
    return list(found.values())


def anew(told: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Those by which all processes start anew."""
    return [one for one in told if _ANEW in one.found]


def inexact(told: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Those of the self-check, which a job refuses, and a rehearsal tries all the same."""
    return [one for one in told if _INEXACT.search(one.found)]


def is_left_out(told: ScriptFinding) -> bool:
    """It tells of work behind a commit, which explains only what that work has changed."""
    return any(words in told.found for words in _LEFT_OUT)


def _line_of(run: Run, name: str, *, behind: bool) -> str:
    """The line that changes a thing most often."""
    lines = [line for record in run.values() for line, was in record.lines.get(name, ()) if was or not behind]
    return max(dict.fromkeys(lines), key=lines.count, default="")


def three_lines(missing: Mapping[str, Any]) -> tuple[ScriptFinding, ...]:
    """The three lines that a script without a state needs, with its own names."""
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
    """Each once."""
    found: dict[tuple[str, str], ScriptFinding] = {}
    for one in findings:
        found.setdefault((one.line, one.found), one)
    return tuple(found.values())
