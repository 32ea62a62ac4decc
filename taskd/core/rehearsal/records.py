"""Records of the ranks of one run, in the order of their steps.

Rules:

1. A rank's processes write one file, one after the other. The last execution of a step counts: a note that training
   continues behind step N deletes the notes of later steps.
2. A line that a dying process has half written is skipped.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StepRecord:
    """One step of one rank."""

    batches: list[str] = field(default_factory=list)
    """Fingerprints of the model's inputs, one for each forward pass."""
    numbers: dict[str, str] = field(default_factory=dict)
    """States of the random generators at the start of the first forward pass."""
    before: dict[str, str] = field(default_factory=dict)
    """Parts of the state at the start of the first forward pass."""
    after: dict[str, str] = field(default_factory=dict)
    """Parts of the state at the commit."""
    loss: str = ""
    variables: dict[str, tuple[str, bool, bool]] = field(default_factory=dict)
    """Script's variables at the commit: fingerprint, whether numbers are in it, whether it is a function's own."""


@dataclass(frozen=True)
class Printed:
    """A line that the script has printed after `step` commits."""

    step: int
    text: str
    line: str


@dataclass
class RareMoments:
    """Moments of a rank that not every step has, each by the number of commits before it."""

    evaluations: list[int] = field(default_factory=list)
    saves: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Last steps of epochs, or of passes over the data."""
    accumulations: list[int] = field(default_factory=list)
    """Steps of several forward passes."""
    works: list[int] = field(default_factory=list)
    """Steps behind which work given to `after_commit` was done."""


@dataclass
class ScriptFacts:
    """Facts about a script beside its steps."""

    made: str = ""
    """Line that made the TrainState."""
    entered: bool = False
    """True if a resilient function was entered."""
    missing: dict[str, Any] = field(default_factory=dict)
    """Objects that a script without a TrainState trains with."""
    died: dict[str, str] = field(default_factory=dict)
    """Exception that ended the script."""
    told: list[str] = field(default_factory=list)
    """taskd's own warnings."""
    wrote: list[str] = field(default_factory=list)
    """Files outside of the copy that were opened for writing."""
    shortened: list[str] = field(default_factory=list)
    """Loaders that were shortened, as texts for the report."""


@dataclass
class RankRecord:
    """All records of one rank."""

    steps: dict[int, StepRecord] = field(default_factory=dict)
    printed: list[Printed] = field(default_factory=list)
    rare: RareMoments = field(default_factory=RareMoments)
    facts: ScriptFacts = field(default_factory=ScriptFacts)
    killed: list[tuple[int, int]] = field(default_factory=list)
    """Number of the kill, and the step after whose commit it came."""
    resumed: list[tuple[int, bool]] = field(default_factory=list)
    """Step behind which training continued, and whether in a new process."""
    committed: int = 0
    lines: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)
    """For each watched name, the lines that change it, and whether between a commit and the next forward pass."""


def read(lines: Iterable[str]) -> RankRecord:
    """Return the records in one rank's file."""
    record = RankRecord()
    for line in lines:
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if isinstance(note, dict):
            _take(record, note)
    return record


def _take(record: RankRecord, note: Mapping[str, Any]) -> None:
    kind, step = note.get("k"), int(note.get("step", 0))
    match kind:
        case "begin" | "on":
            if kind == "begin":
                pass
            else:
                record.resumed.append((step, bool(note["new"])))
            record.facts.entered = record.facts.entered or bool(note.get("inside", True))
            for later in [number for number in record.steps if number > step]:
                del record.steps[later]
        case "forward":
            _take_pass(record, step, note)
        case "commit":
            one = record.steps.setdefault(step, StepRecord())
            one.after, one.loss = note["parts"], note["loss"]
            one.variables = {name: (text, moves, local) for name, text, moves, local in note["variables"]}
            record.committed = max(record.committed, step)
        case "printed":
            record.printed.append(Printed(step, note["text"], note["line"]))
        case "anew":
            record.facts.died = {}  # raised by a survivor of the death after the training
        case "line":
            record.lines.setdefault(note["name"], []).append((note["line"], bool(note["behind"])))
        case _:
            _take_fact(record, step, note)


def _take_pass(record: RankRecord, step: int, note: Mapping[str, Any]) -> None:
    one = record.steps.setdefault(step, StepRecord())
    if not one.batches:
        one.numbers, one.before = note["numbers"], note["parts"]
    one.batches.append(note["batch"])
    if len(one.batches) == 2:
        record.rare.accumulations.append(step)


def _take_fact(record: RankRecord, step: int, note: Mapping[str, Any]) -> None:
    match note.get("k"):
        case "made":
            record.facts.made = note["line"]
        case "evaluation":
            record.rare.evaluations.append(step)
        case "save":
            record.rare.saves.append(step)
        case "end":
            record.rare.ends.append(step)
        case "work":
            record.rare.works.append(step)
        case "shortened":
            record.facts.shortened.append(note["text"])
        case "killed":
            record.killed.append((note["number"], step))
        case "told":
            record.facts.told.append(note["text"])
        case "missing":
            record.facts.missing = dict(note)
        case "died":
            record.facts.died = dict(note)
        case "wrote":
            record.facts.wrote.append(note["path"])
        case _:
            pass
