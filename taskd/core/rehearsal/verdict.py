"""Verdict of a rehearsal: whether a script is exact and, if not, the line that is the reason.

Rules:

1. A script is exact if it continued in place after each kill and matches the undisturbed run: in its weights, data,
   random numbers and lines. The first difference is nearest to the reason. Its line comes from a warning of taskd, or
   is the line that changes the differing value.
2. A script cannot be judged if it fails without taskd, or if two undisturbed runs differ.
3. The line of the script's own set-up error (`ConfigError`) is such a line too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from taskd.core.rehearsal import compare
from taskd.core.rehearsal.compare import Difference, Noise, Run, StepStage
from taskd.core.rehearsal.findings import (
    ScriptFinding,
    anew,
    distinct,
    inexact,
    is_left_out,
    of_lines,
    of_moved,
    of_name,
    of_variables,
    three_lines,
    told_in,
)
from taskd.core.rehearsal.kills import Kill, Moment

_OF_DATA: Final = ("DataLoader iterated", "random generator", "were passed over", "data position")
_MOST: Final = 3
_OTHERWISE: Final = "after a recovery it goes on otherwise than without the fault"


class Outcome(Enum):
    """Outcome of a rehearsal. The value is the exit status of the command."""

    EXACT = 0
    INEXACT = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Verdict:
    """Verdict on one script. `first` is the place of the first difference."""

    outcome: Outcome
    headline: str
    findings: tuple[ScriptFinding, ...] = ()
    first: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rehearsed:
    """Runs of a rehearsal. `recoveries` are those of the run with kills; `error` is why that run failed, or ""."""

    undisturbed: Run
    again: Run
    killed: Run
    kills: Sequence[Kill]
    recoveries: Sequence[dict[str, Any]] = ()
    error: str = ""
    traced: Run = field(default_factory=dict)
    """Run that traced the lines which change the suspects."""

    @property
    def ends_anew(self) -> bool:
        """True if all ranks got new processes after the death behind the training function."""
        return len(self.in_training) < len(self.recoveries)

    @property
    def in_training(self) -> Sequence[dict[str, Any]]:
        """Recoveries within the training: those before all ranks got new processes."""
        done = {number for record in self.killed.values() for number, _ in record.killed}
        step = next((kill.step for kill in self.kills if kill.moment is Moment.BEHIND and kill.number in done), None)
        for number, one in enumerate(self.recoveries):
            all_new = one.get("restart") or not one.get("kept", True)
            if step is not None and all_new and one.get("step", -1) >= step:
                return self.recoveries[:number]
        return self.recoveries

    @property
    def noise(self) -> Noise:
        """Values that vary between the undisturbed runs."""
        return compare.noise(self.undisturbed, self.again)

    @property
    def difference(self) -> Difference | None:
        """First difference of the run with kills; None if there is none."""
        return compare.first_difference(self.undisturbed, self.killed, self.noise)


def of_undisturbed(run: Run, error: str) -> Verdict | None:
    """Return the verdict if the first run already decides it: by an error, or a lack of anything to recover with."""
    died = next((record.facts.died for record in run.values() if record.facts.died), None)
    if died is not None and died.get("taskd") == "True":
        return Verdict(Outcome.INEXACT, "it is refused as it stands", (ScriptFinding(died["line"], died["text"]),))
    missing = next((record.facts.missing for record in run.values() if record.facts.missing), None)
    if missing is not None and missing.get("door"):
        text = f"{missing['door']} makes its training state in a job of taskd's alone: steps cannot be compared here"
        mend = "Let it run once with a rank killed by hand; the page of the library says what is exact (docs/trainers)."
        return Verdict(Outcome.UNKNOWN, f"it trains with {missing['door']}", (ScriptFinding("", text, mend),))
    if missing is not None and not any(record.facts.made for record in run.values()):
        return Verdict(
            Outcome.INEXACT, "it does not use taskd: after a fault all processes start anew", three_lines(missing)
        )
    if died is not None or error:
        text = died["text"] if died is not None else error
        line = died["line"] if died is not None else ""
        return Verdict(Outcome.UNKNOWN, "it fails without any fault", (ScriptFinding(line, text),))
    made = next((record.facts.made for record in run.values() if record.facts.made), "")
    if not made:
        text = "no TrainState was made and no optimizer stepped before the script ended"
        return Verdict(Outcome.UNKNOWN, "it does not train here", (ScriptFinding("", text),))
    if not any(record.facts.entered for record in run.values()):
        text = "this TrainState is given to no resilient function, or that was never called"
        mend = "Decorate the function that trains: @taskd.resilient(state)"
        return Verdict(Outcome.INEXACT, "its training is in no resilient function", (ScriptFinding(made, text, mend),))
    if not any(record.committed for record in run.values()):
        text = "no step of this TrainState was ever committed"
        mend = "Call state.commit() last in each step, once"
        return Verdict(Outcome.INEXACT, "it commits no step", (ScriptFinding(made, text, mend),))
    return None


def of_noise(first: Run, second: Run) -> Verdict | None:
    """Return the verdict if two undisturbed runs differ where nothing may; None otherwise."""
    found = compare.first_difference(first, second, compare.noise(first, second))
    if found is None:
        return None
    numbers = sorted(compare.noise(first, second).numbers)
    remedy = (
        "Seed the generators that it draws from (torch.manual_seed, random.seed, numpy.random.seed), sort what it lists"
    )
    remedy += f"; unlike in both runs: the random numbers of {', '.join(numbers)}" if numbers else ""
    text = f"two undisturbed runs differ in step {found.step} on rank {found.rank}: {_what(found)}"
    return Verdict(
        Outcome.UNKNOWN, "it does not do the same twice, without any fault", (ScriptFinding("", text, f"{remedy}."),)
    )


def suspects(runs: Rehearsed) -> list[str]:
    """Return names of variables and parts whose changes one more run should trace; none if the script is exact."""
    found = runs.difference
    told = told_in(runs.killed)
    names = [f"variable:{one.name}" for one in _variables(runs) if not of_name(one.name, told)]
    if found is not None and found.stage is StepStage.STATE:
        moved = compare.moved_behind(runs.undisturbed)
        names = [*(f"part:{name}" for name in found.what if name in moved), *names]
    return names[: 2 * _MOST]


def judge(runs: Rehearsed) -> Verdict:
    """Return the verdict on a script that has been rehearsed with kills."""
    told = told_in(runs.killed)
    notes = _notes(runs, told)
    if runs.error:
        findings = (*anew(told), *_of_error(runs)) or (ScriptFinding("", runs.error),)
        return Verdict(Outcome.INEXACT, "it does not come through the kills", findings[:_MOST], notes=notes)
    restarts = [one for one in runs.in_training if one.get("restart")]
    if restarts:
        findings = (*anew(told),) or (
            ScriptFinding("", f"all processes started anew: {restarts[0].get('reason', '')}"),
        )
        return Verdict(Outcome.INEXACT, "it does not go on in place: at a fault all processes start anew", findings)
    if wrong := _wrong_course(runs):
        return Verdict(Outcome.INEXACT, "it does not come through the kills", (ScriptFinding("", wrong),), notes=notes)
    found = runs.difference
    if found is not None:
        return _of_difference(runs, found, told, notes)
    variables = [one for one in _variables(runs) if not one.local or one.moves]
    lines = compare.line_differences(runs.undisturbed, runs.killed, runs.noise)
    if variables or lines:
        findings = (*of_variables(_variables(runs), runs.traced, told), *of_lines(lines))
        what = "weights and data are exact, what it keeps beside its state is not"
        if not variables:
            what = "weights and data are exact, what it prints is not"
        first = f"step {min(one.step for one in variables)}" if variables else f"after step {lines[0].expected.step}"
        return Verdict(Outcome.INEXACT, what, distinct(findings)[:_MOST], first, notes)
    return Verdict(Outcome.EXACT, "", notes=notes)


def _wrong_course(runs: Rehearsed) -> str:
    """Return how the run with kills went wrong, whatever its weights; "" if it did not."""
    steps = min(record.committed for record in runs.undisturbed.values())
    short = [rank for rank, record in runs.killed.items() if record.committed < steps]
    if short:
        return f"with kills it ends after step {runs.killed[short[0]].committed}, undisturbed it comes to step {steps}"
    died = sum(len(record.killed) for record in runs.killed.values()) - runs.ends_anew
    new = sum(len(one.get("replaced", ())) for one in runs.in_training)
    if new > died:
        return f"{new} processes were replaced, expected the {died} that were killed; please report it"
    return ""


def _of_difference(runs: Rehearsed, found: Difference, told: list[ScriptFinding], notes: tuple[str, ...]) -> Verdict:
    first = f"step {found.step}, rank {found.rank}: {_what(found)}{_kill_before(runs, found.step)}"
    if not any(step < found.step for record in runs.killed.values() for _, step in record.killed):
        text = f"under taskd, before any kill, {_what(found)} is other than under stock torchrun; please report it"
        return Verdict(Outcome.INEXACT, "it is not what it is without taskd", (ScriptFinding("", text),), first, notes)
    if findings := inexact(told):
        return Verdict(Outcome.INEXACT, _OTHERWISE, distinct(findings)[:_MOST], first, notes)
    if found.stage is StepStage.STATE:
        findings += of_moved(runs.undisturbed, runs.traced, found)
    if found.stage in (StepStage.BATCHES, StepStage.NUMBERS):
        findings += [one for one in told if any(words in one.found for words in _OF_DATA)]
    findings += of_variables(_variables(runs), runs.traced, told)
    findings = findings or [one for one in told if found.stage is StepStage.STATE or not is_left_out(one)]
    if not findings:
        mend = "Whatever decides it from step to step belongs into the TrainState, or is made from state.step."
        findings = [
            ScriptFinding("", f"after a recovery {_what(found)} differs, and no line was found that is why", mend)
        ]
    return Verdict(Outcome.INEXACT, _OTHERWISE, distinct(findings)[:_MOST], first, notes)


def _of_error(runs: Rehearsed) -> list[ScriptFinding]:
    return [
        ScriptFinding(record.facts.died["line"], record.facts.died["text"])
        for record in runs.killed.values()
        if record.facts.died
    ]


def _variables(runs: Rehearsed) -> list[compare.VariableDifference]:
    return compare.variable_differences(runs.undisturbed, runs.killed, runs.noise)


def _what(found: Difference) -> str:
    return f"{found.stage.value} ({', '.join(found.what)})" if found.what else found.stage.value


def _kill_before(runs: Rehearsed, step: int) -> str:
    done = {number: at for record in runs.killed.values() for number, at in record.killed if at <= step}
    last = max(done, key=lambda number: (done[number], number), default=None)
    kill = next((one for one in runs.kills if one.number == last), None)
    return "" if kill is None else f"; killed before: {kill}"


def _notes(runs: Rehearsed, told: Sequence[ScriptFinding]) -> tuple[str, ...]:
    notes = []
    again = compare.repeated_lines(runs.undisturbed, runs.killed)
    if again:
        notes.append(f"printed once more, by steps or work that were done again: {again} line{'s' * (again > 1)}")
    if runs.ends_anew:
        ended = runs.recoveries[len(runs.in_training)]
        done = "all processes start anew" if ended.get("restart") else "all ranks go back to copies"
        ends = "" if runs.error else "; they ended well"
        notes.append(f"a rank that dies behind the training function has {done}{ends}")
    local = [one for one in _variables(runs) if one.local and not one.moves]
    if local:
        names = ", ".join(repr(one.name) for one in local[:_MOST])
        notes.append(f"begins anew when the training function is called again: {names}")
    notes += sorted({text for record in runs.undisturbed.values() for text in record.facts.shortened})
    lines: set[str] = set()
    for one in told:
        if not anew([one]) and one.line not in lines:
            lines.add(one.line)
            notes.append(one.found)
    wrote = sorted({path for record in runs.killed.values() for path in record.facts.wrote})
    if wrote:
        notes.append(
            f"it writes outside of its directory, where the runs were not kept apart: {', '.join(wrote[:_MOST])}"
        )
    return tuple(notes)
