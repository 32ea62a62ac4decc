"""What a rehearsal says of a script: whether it is exact, and if not which line is why.

Rules:

1. A script is exact if after each kill it went on in place, and its weights, data, random numbers and lines are those of
   the undisturbed run. What differs first is nearest to the reason; its line is what taskd has told of the script, or the
   line that changes what differs.
2. A script that fails without taskd, or that two undisturbed runs tell differently of, cannot be judged.
3. What the script's own set-up error says (`ConfigError`) is such a line too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from taskd.core.rehearsal import compare
from taskd.core.rehearsal.compare import Difference, Noise, Run, Stage
from taskd.core.rehearsal.kills import Kill

_PLACE: Final = re.compile(r"(/[^\s:()]+:\d+)")
_OF_DATA: Final = ("DataLoader iterated", "random generator", "were passed over", "data position")
_ANEW: Final = "at a fault all processes start anew"
_MOST: Final = 3


class Outcome(Enum):
    """The value is the exit status of the command."""

    EXACT = 0
    INEXACT = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Finding:
    """One reason: `file:line` ("" if none is known), what was found there, and how to mend it."""

    line: str
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Verdict:
    """Of one script. `first` is where a difference was first seen."""

    outcome: Outcome
    headline: str
    findings: tuple[Finding, ...] = ()
    first: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsed:
    """The runs of a rehearsal. `recoveries` are those of the run with kills, `error` why that did not end well."""

    undisturbed: Run
    again: Run
    killed: Run
    kills: Sequence[Kill]
    recoveries: Sequence[dict[str, Any]] = ()
    error: str = ""
    traced: Run = field(default_factory=dict)
    """A run that looked for the lines which change the suspects."""

    @property
    def noise(self) -> Noise:
        """What the undisturbed runs do not have in common."""
        return compare.noise(self.undisturbed, self.again)

    @property
    def difference(self) -> Difference | None:
        """What the kills have changed first."""
        return compare.first_difference(self.undisturbed, self.killed, self.noise)


def of_undisturbed(run: Run, error: str) -> Verdict | None:
    """What the first run shows already: an error, or that there is nothing to recover with."""
    died = next((record.died for record in run.values() if record.died), None)
    if died is not None and died.get("taskd") == "True":
        return Verdict(Outcome.INEXACT, "it is refused as it stands", (Finding(died["line"], died["text"]),))
    missing = next((record.missing for record in run.values() if record.missing), None)
    if missing is not None and not any(record.made for record in run.values()):
        return Verdict(Outcome.INEXACT, "it does not use taskd: after a fault all processes start anew", _lines(missing))
    if died is not None or error:
        text = died["text"] if died is not None else error
        line = died["line"] if died is not None else ""
        return Verdict(Outcome.UNKNOWN, "it fails without any fault", (Finding(line, text),))
    made = next((record.made for record in run.values() if record.made), "")
    if not made:
        text = "no TrainState was made and no optimizer stepped before the script ended"
        return Verdict(Outcome.UNKNOWN, "it does not train here", (Finding("", text),))
    if not any(record.entered for record in run.values()):
        text = "this TrainState is given to no resilient function, or that was never called"
        mend = "Decorate the function that trains: @taskd.resilient(state)"
        return Verdict(Outcome.INEXACT, "its training is in no resilient function", (Finding(made, text, mend),))
    if not any(record.committed for record in run.values()):
        text = "no step of this TrainState was ever committed"
        mend = "Call state.commit() last in each step, once"
        return Verdict(Outcome.INEXACT, "it commits no step", (Finding(made, text, mend),))
    return None


def of_noise(first: Run, second: Run) -> Verdict | None:
    """Whether two undisturbed runs differ where nothing may."""
    found = compare.first_difference(first, second, compare.noise(first, second))
    if found is None:
        return None
    numbers = sorted(compare.noise(first, second).numbers)
    remedy = "Seed the generators that it draws from (torch.manual_seed, random.seed, numpy.random.seed), sort what it lists"
    remedy += f"; unlike in both runs: the random numbers of {', '.join(numbers)}" if numbers else ""
    text = f"two undisturbed runs differ in step {found.step} on rank {found.rank}: {_what(found)}"
    return Verdict(Outcome.UNKNOWN, "it does not do the same twice, without any fault", (Finding("", text, f"{remedy}."),))


def suspects(runs: Rehearsed) -> list[str]:
    """Whose changes are worth a run that looks for their lines; none if the script is exact."""
    found = runs.difference
    names = [f"variable:{one.name}" for one in _variables(runs)]
    if found is not None and found.stage is Stage.STATE:
        moved = compare.moved_behind(runs.undisturbed)
        names = [*(f"part:{name}" for name in found.what if name in moved), *names]
    return names[: 2 * _MOST]


def judge(runs: Rehearsed) -> Verdict:
    """The verdict on a script that has been rehearsed with kills."""
    told = _told(runs.killed)
    notes = _notes(runs, told)
    if runs.error:
        findings = (*_anew(told), *_of_error(runs)) or (Finding("", runs.error),)
        return Verdict(Outcome.INEXACT, "it does not come through the kills", findings[:_MOST], notes=notes)
    anew = [one for one in runs.recoveries if one.get("restart")]
    if anew:
        findings = (*_anew(told),) or (Finding("", f"all processes started anew: {anew[0].get('reason', '')}"),)
        return Verdict(Outcome.INEXACT, "it does not go on in place: at a fault all processes start anew", findings)
    found = runs.difference
    if found is not None:
        return _of_difference(runs, found, told, notes)
    variables = [one for one in _variables(runs) if not one.local or one.moves]
    lines = compare.line_differences(runs.undisturbed, runs.killed, runs.noise)
    if variables or lines:
        findings = (*_of_variables(runs, told), *_of_lines(lines))
        what = "weights and data are exact, what it keeps beside its state is not"
        if not variables:
            what = "weights and data are exact, what it prints is not"
        first = f"step {min(one.step for one in variables)}" if variables else f"after step {lines[0].expected.step}"
        return Verdict(Outcome.INEXACT, what, _distinct(findings)[:_MOST], first, notes)
    return Verdict(Outcome.EXACT, "", notes=notes)


def _of_difference(runs: Rehearsed, found: Difference, told: list[Finding], notes: tuple[str, ...]) -> Verdict:
    first = f"step {found.step}, rank {found.rank}: {_what(found)}{_kill_before(runs, found.step)}"
    if not any(step < found.step for record in runs.killed.values() for _, step in record.killed):
        text = f"under taskd, before any kill, {_what(found)} is other than under stock torchrun; please report it"
        return Verdict(Outcome.INEXACT, "it is not what it is without taskd", (Finding("", text),), first, notes)
    findings: list[Finding] = []
    if found.stage is Stage.STATE:
        findings += _of_moved(runs, found)
    if found.stage in (Stage.BATCHES, Stage.NUMBERS):
        findings += [one for one in told if any(words in one.found for words in _OF_DATA)]
    findings += _of_variables(runs, told)
    findings += told
    if not findings:
        mend = "Whatever decides it from step to step belongs into the TrainState, or is made from state.step."
        findings = [Finding("", f"after a recovery {_what(found)} differs, and no line was found that is why", mend)]
    headline = "after a recovery it goes on otherwise than without the fault"
    return Verdict(Outcome.INEXACT, headline, _distinct(findings)[:_MOST], first, notes)


def _of_moved(runs: Rehearsed, found: Difference) -> list[Finding]:
    moved = compare.moved_behind(runs.undisturbed)
    findings = []
    for name in found.what:
        if name in moved:
            line = _line_of(runs.traced, f"part:{name}", behind=True)
            text = f"{name!r} is changed here, between a commit and the next step: a fault may leave that out"
            mend = "Let it stand before state.commit(), or give it to state.after_commit(…)."
            findings.append(Finding(line, text, mend))
    return findings


def _of_variables(runs: Rehearsed, told: list[Finding]) -> list[Finding]:
    findings = []
    for one in _variables(runs):
        known = [finding for finding in told if f"'{one.name.partition('.')[0]}'" in finding.found]
        if known:
            findings += known
            continue
        line = _line_of(runs.traced, f"variable:{one.name}", behind=False)
        if one.local:
            text = f"{one.name!r} goes on from step to step here, and begins anew when the function is called again"
        else:
            ranks = f"rank{'s' * (len(one.ranks) > 1)} {', '.join(map(str, one.ranks))}"
            text = f"{one.name!r} is changed here and is no part of the TrainState: on {ranks} it is another now"
        mend = "Keep it in an object with state_dict() and load_state_dict() that is given to TrainState"
        mend += ', replicated={"' + one.name.partition(".")[0] + '": …} if it is equal on all ranks, or make it from state.step.'
        findings.append(Finding(line, text, mend))
    return findings


def _of_lines(lines: Sequence[compare.LineDifference]) -> list[Finding]:
    findings = []
    for one in lines:
        wanted = f"rank {one.rank}, after step {one.expected.step}: "
        wanted += f"{one.instead!r} in place of {one.expected.text!r}" if one.instead else f"{one.expected.text!r} is missing"
        mend = "" if one.instead else "Print it before state.commit(), or give it to state.after_commit(…)."
        findings.append(Finding(one.expected.line, wanted, mend))
    return findings


def _of_error(runs: Rehearsed) -> list[Finding]:
    return [Finding(record.died["line"], record.died["text"]) for record in runs.killed.values() if record.died]


def _variables(runs: Rehearsed) -> list[compare.VariableDifference]:
    return compare.variable_differences(runs.undisturbed, runs.killed, runs.noise)


def _told(run: Run) -> list[Finding]:
    """taskd's own warnings that name a line, each once."""
    found: dict[str, Finding] = {}
    for record in run.values():
        for text in record.told:
            place = _PLACE.search(text)
            if place is not None:
                found.setdefault(text, Finding(place[1], text))
    return list(found.values())


def _anew(told: Iterable[Finding]) -> list[Finding]:
    return [one for one in told if _ANEW in one.found]


def _line_of(run: Run, name: str, *, behind: bool) -> str:
    """The line that changes a thing most often."""
    lines = [line for record in run.values() for line, was in record.lines.get(name, ()) if was or not behind]
    return max(dict.fromkeys(lines), key=lines.count, default="")


def _what(found: Difference) -> str:
    return f"{found.stage.value} ({', '.join(found.what)})" if found.what else found.stage.value


def _kill_before(runs: Rehearsed, step: int) -> str:
    done = {number: at for record in runs.killed.values() for number, at in record.killed if at <= step}
    last = max(done, key=lambda number: (done[number], number), default=None)
    kill = next((one for one in runs.kills if one.number == last), None)
    return "" if kill is None else f"; killed before: {kill}"


def _notes(runs: Rehearsed, told: Sequence[Finding]) -> tuple[str, ...]:
    notes = []
    again = compare.repeated_lines(runs.undisturbed, runs.killed)
    if again:
        notes.append(f"{again} lines were printed once more, by steps or work that were done again")
    local = [one for one in _variables(runs) if one.local and not one.moves]
    if local:
        names = ", ".join(repr(one.name) for one in local[:_MOST])
        notes.append(f"begins anew when the training function is called again: {names}")
    notes += [one.found for one in told if _ANEW not in one.found]
    wrote = sorted({path for record in runs.killed.values() for path in record.wrote})
    if wrote:
        notes.append(f"it writes outside of its directory, where the runs were not kept apart: {', '.join(wrote[:_MOST])}")
    return tuple(notes)


def _lines(missing: dict[str, Any]) -> tuple[Finding, ...]:
    """The three lines that a script without a state needs, with its own names."""
    kinds: dict[str, str] = missing.get("kinds") or {}
    kinds = {name: kind for name, kind in kinds.items() if kind != "model" or "wrapper" not in kinds.values()}
    given = ", ".join(f"{name}={name}" for name in kinds) or "model=model, optimizer=optimizer"
    function = missing.get("function", "")
    at = missing.get("line", "")
    named = function not in ("", "<module>")
    where = missing.get("begins", "") if named else at
    return (
        Finding(where, f"found no TrainState, expected before the training: state = taskd.TrainState({given})"),
        Finding(
            where,
            f"expected around {function}(): @taskd.resilient(state)"
            if named
            else "expected the loop in a function: @taskd.resilient(state)",
        ),
        Finding(at, "expected as the last line of each step: state.commit()", "docs/script.md has the rest."),
    )


def _distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found: dict[tuple[str, str], Finding] = {}
    for one in findings:
        found.setdefault((one.line, one.found), one)
    return tuple(found.values())
