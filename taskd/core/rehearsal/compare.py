"""Differences between two runs of one script.

Rules:

1. Values that vary between two undisturbed runs (a clock, an unseeded generator) are noise and do not count. If
   weights, losses or batches vary between them, the script itself cannot be judged.
2. A step is compared in this order: the state before it, the random numbers, the batches, the results. The first
   difference is nearest to the reason.
3. A line that is printed twice is no difference. A line that is missing or has changed is one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.core.rehearsal.records import Printed, RankRecord, StepRecord

Run = Mapping[int, RankRecord]
"""Records of one run, by rank."""
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class StepStage(Enum):
    """Part of a step that can differ; the value is its name in reports."""

    STATE = "the state before it"
    NUMBERS = "the random numbers"
    BATCHES = "the data"
    WORK = "the weights that came of it"
    LOSS = "the loss"


@dataclass(frozen=True)
class Difference:
    """First difference within a step."""

    step: int
    stage: StepStage
    rank: int
    what: tuple[str, ...] = ()
    """Names of parts or generators."""


@dataclass(frozen=True)
class LineDifference:
    """A line that was printed differently, or not at all (`instead` is "" then)."""

    rank: int
    expected: Printed
    instead: str


@dataclass(frozen=True)
class VariableDifference:
    """A variable of the script whose value differs at the last commit, on these ranks."""

    name: str
    ranks: tuple[int, ...]
    step: int
    moves: bool
    local: bool
    replicated: bool
    """True if all ranks had the same value in the undisturbed run."""


@dataclass(frozen=True)
class Noise:
    """Values that vary between two undisturbed runs."""

    numbers: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    lines: frozenset[str] = frozenset()
    """Printed lines with their numbers taken out."""


def noise(first: Run, second: Run) -> Noise:
    """Return the noise between two undisturbed runs."""
    numbers, variables, lines = set[str](), set[str](), set[str]()
    for rank, one, other in _both(first, second):
        for step in one.steps.keys() & other.steps.keys():
            mine, theirs = one.steps[step], other.steps[step]
            numbers |= set(_unequal(mine.numbers, theirs.numbers))
            shared = mine.variables.keys() & theirs.variables.keys()
            variables |= {name for name in shared if mine.variables[name][0] != theirs.variables[name][0]}
        texts = {printed.text for printed in other.printed}
        lines |= {template(printed.text) for printed in one.printed if printed.text not in texts}
        del rank
    return Noise(frozenset(numbers), frozenset(variables), frozenset(lines))


def first_difference(expected: Run, found: Run, masked: Noise) -> Difference | None:
    """Return the earliest difference of any rank; None if there is none."""
    last = min((record.committed for record in expected.values()), default=0)
    for step in range(1, last + 1):
        for stage in StepStage:
            for rank, one, other in _both(expected, found):
                if step in one.steps and step in other.steps:
                    what = _differs(one.steps[step], other.steps[step], stage, masked)
                    if what is not None:
                        return Difference(step, stage, rank, what)
    return None


def _differs(one: StepRecord, other: StepRecord, stage: StepStage, masked: Noise) -> tuple[str, ...] | None:
    """Return the names of the parts that differ at this stage; None if nothing differs."""
    match stage:
        case StepStage.STATE:
            names = _unequal(one.before, other.before)
        case StepStage.NUMBERS:
            names = tuple(name for name in _unequal(one.numbers, other.numbers) if name not in masked.numbers)
        case StepStage.BATCHES:
            both = bool(one.batches and other.batches)
            return () if both and one.batches != other.batches else None
        case StepStage.WORK:
            names = _unequal(one.after, other.after)
        case StepStage.LOSS:
            return () if one.loss and other.loss and one.loss != other.loss else None
    return names or None


def line_differences(expected: Run, found: Run, masked: Noise) -> list[LineDifference]:
    """Return lines of the undisturbed run that the other run has not printed, by step and rank."""
    missing = []
    for rank, one, other in _both(expected, found):
        texts = {printed.text for printed in other.printed}
        known = {printed.text for printed in one.printed}
        strange = [printed for printed in other.printed if printed.text not in known]
        shapes = {template(printed.text) for printed in other.printed}
        for printed in one.printed:
            shape = template(printed.text)
            if printed.text in texts or (shape in masked.lines and shape in shapes):
                continue
            near = [one for one in strange if one.line == printed.line and template(one.text) == shape]
            instead = min(near, key=lambda one: abs(one.step - printed.step), default=None)
            missing.append(LineDifference(rank, printed, "" if instead is None else instead.text))
    return sorted(missing, key=lambda one: (one.expected.step, one.rank))


def repeated_lines(expected: Run, found: Run) -> int:
    """Return the number of additional copies of lines that the undisturbed run printed too."""
    count = 0
    for _, one, other in _both(expected, found):
        texts = [printed.text for printed in one.printed]
        again = [printed.text for printed in other.printed]
        count += sum(max(0, again.count(text) - texts.count(text)) for text in set(texts))
    return count


def variable_differences(expected: Run, found: Run, masked: Noise) -> list[VariableDifference]:
    """Return variables that differ at the last commit that both runs have.

    Variables of the training function come last. Before them come those that hold no tensor and no generator.
    """
    differing: dict[str, list[tuple[int, int, bool, bool]]] = {}
    for rank, one, other in _both(expected, found):
        shared = [step for step in one.steps.keys() & other.steps.keys() if one.steps[step].variables]
        shared = [step for step in shared if other.steps[step].variables]
        if not shared:
            continue
        last = max(shared)
        mine, theirs = one.steps[last].variables, other.steps[last].variables
        for name in mine.keys() & theirs.keys():
            if name not in masked.variables and mine[name][0] != theirs[name][0]:
                step = next(
                    step
                    for step in sorted(shared)
                    if name in one.steps[step].variables
                    and one.steps[step].variables[name][0] != other.steps[step].variables.get(name, ("",))[0]
                )
                differing.setdefault(name, []).append((step, rank, mine[name][1], mine[name][2]))
    found_all = [
        VariableDifference(
            name,
            tuple(rank for _, rank, _, _ in places),
            min(places)[0],
            places[0][2],
            places[0][3],
            len({text for record in expected.values() if (text := _last_of(record, name))}) == 1,
        )
        for name, places in differing.items()
    ]
    return sorted(found_all, key=lambda one: (one.local, not one.moves, one.step, one.name))


def _last_of(record: RankRecord, name: str) -> str:
    steps = [step for step, one in record.steps.items() if name in one.variables]
    return record.steps[max(steps)].variables[name][0] if steps else ""


def moved_behind(run: Run) -> list[str]:
    """Return parts that change between a commit and the next step's forward pass, the most frequent first."""
    found: dict[str, int] = {}
    for record in run.values():
        for step, one in record.steps.items():
            before = record.steps.get(step - 1)
            if before is not None and before.after and one.before:
                for name in _unequal(before.after, one.before):
                    found[name] = found.get(name, 0) + 1
    return sorted(found, key=lambda name: -found[name])


def template(text: str) -> str:
    """Return a line with "#" in place of its numbers."""
    return _NUMBER.sub("#", text)


def _unequal(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in one if one[name] and other.get(name) and one[name] != other[name])


def _both(first: Run, second: Run) -> Iterator[tuple[int, RankRecord, RankRecord]]:
    for rank in sorted(first.keys() & second.keys()):
        yield rank, first[rank], second[rank]
