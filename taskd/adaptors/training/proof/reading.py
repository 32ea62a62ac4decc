"""Reading of a training function's text, before the first step, for values that a recovery would change.

Rules:

1. The function is read, and the functions of the script that it calls, by definition and use (`flow`). Nothing of the
   script is run. Code that has no text, or is a library's, is not read, and nothing is reported of it.
2. Calls that count a loader's batches go on counting after a recovery, and names that a loop leaves behind are kept,
   where that mends a finding.
3. A finding is a difference that reaches the training: a backward pass, an optimizer, a learning rate, a condition over
   these. Values that are printed, logged or saved are no finding. Neither are values that the state, its step, or the
   loader's place corrects.
4. A finding makes a fault restart all processes (`TASKD_INEXACT=refuse`), or is a warning alone. A finding that matters
   at one step alone, or beside the training, is a warning.
5. A failure of the reading is logged, and the training begins.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from torch.utils.data import Sampler

from taskd.adaptors.training.data.counts import CountedCall, count_on
from taskd.adaptors.training.data.loop_names import KeptNames
from taskd.adaptors.training.data.places import LoaderPlace
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.ahead import can_be_tried
from taskd.adaptors.training.proof.flow.expressions import TooMuch
from taskd.adaptors.training.proof.flow.iterating import can_go_on
from taskd.adaptors.training.proof.flow.scope import Code, code_of, forget_text, plain_function
from taskd.adaptors.training.proof.flow.statements import Statements
from taskd.adaptors.training.proof.flow.values import Taint, TaintKind
from taskd.adaptors.training.proof.read_findings import WORDS, ReadFinding, Weight
from taskd.adaptors.training.state import TrainState
from taskd.errors import RefusedError
from taskd.runtime.worker.worker import WorkerLink

_log = logging.getLogger(__name__)
_MOST_TOLD: Final = 5
_COUNTS: Final = (TaintKind.INDEX, TaintKind.CUT, TaintKind.BEGINS)
"""Kinds of findings that a call mends by counting on."""


def _to_nobody(text: str) -> None:
    """Ignore the text."""


def refuse_inexact(
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    refusals: Refusals,
    link: WorkerLink,
) -> None:
    """Refuse in-place recoveries of a training function that is not exact after one; where allowed, only warn of it.

    `given`: the arguments that it is called with.
    """
    try:
        findings = read_function(function, given, state, refusals.tell)
    except Exception:  # noqa: BLE001 - no failure of the reading may stop the training
        _log.warning("the training function could not be read, and is not judged", exc_info=True)
        return
    refusals.hinders_proof = next((one.hinders for one in findings if one.hinders), "")
    worth_telling = [one for one in findings if one.weight is not Weight.NOTED]
    told = worth_telling[:_MOST_TOLD]
    if len(worth_telling) > len(told):
        last = told[-1]
        told[-1] = last._replace(text=f"{last.text} (and {len(worth_telling) - len(told)} more)")
    for one in told:
        if one.weight is Weight.WARNED:
            refusals.tell(f"{one.text}. {one.remedy}")
        elif link.config.allows_inexact:
            refusals.warn(f"{one.text}: not exact after a recovery. {one.remedy}")
    if link.config.allows_inexact:
        return
    refused, ahead, unproven = (
        [Matter(one.text, one.remedy, no_rebuild=True) for one in told if one.weight is weight]
        for weight in (Weight.REFUSED, Weight.AHEAD, Weight.UNTIL_PROVEN)
    )
    can_be_proven = can_be_tried(state._recovery.parts)
    refusals.fetches_ahead = bool(ahead) and can_be_proven
    (refusals.until_proven if can_be_proven else refusals.add)(*ahead, *unproven)
    refusals.add(*refused)


def read_function(
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    tell: Callable[[str], None] = _to_nobody,
) -> list[ReadFinding]:
    """Return the findings in a training function, in the order of its lines.

    From now on counts go on and names are kept where they can. `tell` gets a warning for a name that cannot.
    """
    reader, _ = _read(function, given, state, tell)
    return [] if reader is None else _as_findings(reader)


def go_on_as_before(
    function: Any, given: tuple[Sequence[Any], Mapping[str, Any]], state: TrainState, *, must_mend: bool = True
) -> None:
    """Make a new process go on with the same counts, and keep the same names, as the other processes do.

    Raises:
        RefusedError: the others are known to do so (`must_mend`), and this process finds none in the script.
    """
    try:
        _, mended = _read(function, given, state)
    except Exception as error:
        if not must_mend:
            _log.warning("the training function could not be read, and is not judged", exc_info=True)
            return
        raise RefusedError(
            f"this process cannot read in the script the counts or names that others go on with: {error!r}"
        ) from error
    if must_mend and not mended:
        raise RefusedError(
            "this process does not find in the script the counts or names that others go on with; expected the same "
            "text in all processes. Start the job anew if the script was edited"
        )


def _read(
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    tell: Callable[[str], None] = _to_nobody,
) -> tuple[Statements | None, bool]:
    """Read the function; once more if counts go on or names are kept. Return the reader, and whether any are."""
    code, first = _text_of(function)
    if code is None:
        return None, False
    parts = state._recovery.parts
    loaders = {id(part): name for name, part in parts.positions.items() if not isinstance(part, Sampler)}
    loaders |= {id(loader): name for name, place in parts.places.items() if (loader := getattr(place, "loader", None))}
    counting = {name: place for name, place in parts.places.items() if isinstance(place, LoaderPlace)}
    keeping = [name for name, place in counting.items() if place.has_length]

    def read(calls: list[CountedCall], names: list[KeptNames]) -> Statements:
        reader = Statements(state, parts.all, loaders, counting, keeping, calls, names)
        try:
            reader.read_training(code, (*first, *given[0]), given[1])
        except TooMuch:
            _log.info("the training function is longer than what is read of it beforehand")
            reader.complete = False
        return reader

    try:
        reader = read([], [])
        calls, names = _mending(reader)
        if not calls and not names:
            return reader, False
        again = read(calls, names)
        if not again.complete or any(one.kind is TaintKind.LEAVES for one in _mattering(again)):
            return reader, False
    finally:
        forget_text()
    count_on(calls)
    parts.keep_names(names, tell)
    for name in {call.loader for call in calls} | {one.loader for one in names}:
        counting[name].is_mended = True
    return again, True


def _mending(reader: Statements) -> tuple[list[CountedCall], list[KeptNames]]:
    """Return the calls that would mend a finding by going on counting, and the names that would by being kept."""
    if not reader.complete:
        return [], []
    places = {one.place for one in reader.findings if one.kind in _COUNTS}
    found = dict.fromkeys(call for (place, _), call in reader.countable.items() if place in places)
    calls = [call for call in found if can_go_on(call, reader.texts[call.function])]
    loops: dict[KeptNames, list[KeptNames]] = {}
    for source, one in reader.keepable.items():
        if source in reader.findings:
            loops.setdefault(one._replace(names=(), others=()), []).append(one)
    return calls, [_one_of(found) for found in loops.values()]


def _one_of(found: list[KeptNames]) -> KeptNames:
    """Join the kept names of one loop, name by name."""
    names = {name for one in found for name in one.names}
    others = {name for one in found for name in one.others} - names
    return found[0]._replace(names=tuple(sorted(names)), others=tuple(sorted(others)))


def _text_of(function: Any) -> tuple[Code | None, tuple[Any, ...]]:
    """Return the text of a training function, and the arguments that it was bound to."""
    called, own, first = plain_function(function)
    code = code_of(called)
    return (None if code is None or code.function is None else code._replace(own=own)), first


def _mattering(reader: Statements) -> Iterator[Taint]:
    """Yield the sources that a recovery does not correct."""
    counts = {one.name for one in reader.findings if one.kind in (*_COUNTS, TaintKind.AHEAD)}
    right = {(one.kind, one.place) for one in reader.right}
    for source in reader.findings:
        if source.kind is TaintKind.LEAVES and reader.asks_first:
            continue
        if source.kind in (TaintKind.CARRIED, TaintKind.RETURNED) and source.name in counts:
            continue
        if source._replace(kind=TaintKind.CARRIED) in reader.findings and source.kind is TaintKind.RETURNED:
            continue
        if (source.kind, source.place) not in right and not _is_gone_through_again(source, reader):
            yield source


def _as_findings(reader: Statements) -> list[ReadFinding]:
    found: dict[tuple[str, str], ReadFinding] = {}
    for source in _mattering(reader):
        place, text = reader.findings[source]
        used = f"{place} ({text})" if text else place
        found.setdefault((source.name, source.kind.name), WORDS[source.kind](source, used))
    named = {one.line for (name, kind), one in found.items() if kind == TaintKind.BEGINS.name and name != "range"}
    told = [one for (name, _), one in found.items() if name != "range" or one.line not in named]
    return sorted(told, key=lambda one: _by_line(one.line))


def _is_gone_through_again(source: Taint, reader: Statements) -> bool:
    """Return whether the script goes through all from its beginning, and skips finished work by a count of its own."""
    counts = source.kind is TaintKind.CARRIED and source.name in reader.skips
    return bool(reader.skips) and not reader.loaders and (counts or source.kind is TaintKind.BEGINS)


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)
