"""What of the training function would be another one after a recovery: read from its text, before the first step.

Rules:

1. Read are the function and the functions of the script that it calls, by definition and use (`flow`). Nothing of the
   script is run. What has no text, or is a library's, is not read, and nothing is told of it.
2. Calls that count a loader's batches go on counting after a recovery, and names that a loop leaves behind are kept,
   where that mends what was found.
3. Found is what comes to the training: a backward pass, an optimizer, a learning rate, a condition over these. What is
   printed, logged or saved is no finding. Nor is what the state, its step, or the loader's place makes right again.
4. Where something is found, a fault restarts all processes (`TASKD_INEXACT=refuse`), or it is a warning alone. What
   matters at one step alone, or beside the training, is a warning.
5. Whatever fails in the reading is logged, and the training begins.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from torch.utils.data import Sampler

from taskd.adaptors.training.data.counts import CountedCall, count_on
from taskd.adaptors.training.data.loop_names import KeptNames
from taskd.adaptors.training.data.places import LoaderPlace
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.flow.expressions import TooMuch
from taskd.adaptors.training.proof.flow.iterating import can_go_on
from taskd.adaptors.training.proof.flow.scope import Code, code_of, forget_text, plain_function
from taskd.adaptors.training.proof.flow.statements import Statements
from taskd.adaptors.training.proof.flow.values import Taint, TaintKind
from taskd.adaptors.training.state import TrainState
from taskd.errors import RefusedError
from taskd.runtime.worker.worker import WorkerLink

_log = logging.getLogger(__name__)
_MOST_TOLD: Final = 5
_COUNTS: Final = (TaintKind.INDEX, TaintKind.CUT, TaintKind.BEGINS)
"""What a call that counts on mends."""
_LOOKS: Final = "{} looks at a batch, and would get another one in a step that is done twice"


class Weight(Enum):
    """What a finding means for the job."""

    REFUSED = "at a fault all processes start anew"
    NOTED = "nothing, and nobody is warned: it is exact after a recovery"
    WARNED = "a recovery at a single step, or something beside the training, is not exact: a warning, and no more"


class ReadFinding(NamedTuple):
    """One thing that is not exact after a recovery.

    Attributes:
        line: `file:line` of the script.
        text: what was found there, and what a recovery makes of it.
        remedy: what to write in its place.
        weight: what it means for the job.
        hinders: why the self-check does no step twice then; "" if it may.
    """

    line: str
    text: str
    remedy: str
    weight: Weight = Weight.REFUSED
    hinders: str = ""


def _to_nobody(text: str) -> None:
    """Tell nobody."""


def refuse_inexact(
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    refusals: Refusals,
    link: WorkerLink,
) -> None:
    """Refuse recoveries in place of a training function that is not exact after one; warn of it only where allowed.

    `given` are the arguments that it is called with.
    """
    try:
        findings = read_function(function, given, state, refusals.tell)
    except Exception:  # noqa: BLE001 - whatever it is, it is no reason not to train
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
    if not link.config.allows_inexact:
        refused = [one for one in told if one.weight is Weight.REFUSED]
        refusals.add(*(Matter(one.text, one.remedy, no_rebuild=True) for one in refused))


def read_function(
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    tell: Callable[[str], None] = _to_nobody,
) -> list[ReadFinding]:
    """What is found in a training function, in the order of its lines.

    From now on counts go on and names are kept where they can. `tell` gets a warning for a name that cannot.
    """
    reader, _ = _read(function, given, state, tell)
    return [] if reader is None else _as_findings(reader)


def go_on_as_before(
    function: Any, given: tuple[Sequence[Any], Mapping[str, Any]], state: TrainState, *, must_mend: bool = True
) -> None:
    """In a new process: let the same calls go on counting, and keep the same names, as the other processes do.

    Raises:
        RefusedError: the others are known to do so (`must_mend`), and nothing is found in the script.
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
    """Read the function; again, if counts go on or names are kept. Return what was read, and whether any are."""
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
    """Join what is kept of one loop, name by name."""
    names = {name for one in found for name in one.names}
    others = {name for one in found for name in one.others} - names
    return found[0]._replace(names=tuple(sorted(names)), others=tuple(sorted(others)))


def _text_of(function: Any) -> tuple[Code | None, tuple[Any, ...]]:
    """The text of a training function, and the arguments that it was bound to."""
    called, own, first = plain_function(function)
    code = code_of(called)
    return (None if code is None or code.function is None else code._replace(own=own)), first


def _mattering(reader: Statements) -> Iterator[Taint]:
    """Yield the sources that a recovery does not put right."""
    counts = {one.name for one in reader.findings if one.kind in (*_COUNTS, TaintKind.AHEAD)}
    right = {(one.kind, one.place) for one in reader.right}
    for source in reader.findings:
        if source.kind is TaintKind.LEAVES and reader.asks_first:
            continue
        if source.kind is TaintKind.CARRIED and source.name in counts:
            continue
        if (source.kind, source.place) not in right and not _is_gone_through_again(source, reader):
            yield source


def _as_findings(reader: Statements) -> list[ReadFinding]:
    found: dict[tuple[str, str], ReadFinding] = {}
    for source in _mattering(reader):
        place, text = reader.findings[source]
        used = f"{place} ({text})" if text else place
        found.setdefault((source.name, source.kind.name), _WORDS[source.kind](source, used))
    named = {one.line for (name, kind), one in found.items() if kind == TaintKind.BEGINS.name and name != "range"}
    told = [one for (name, _), one in found.items() if name != "range" or one.line not in named]
    return sorted(told, key=lambda one: _by_line(one.line))


def _is_gone_through_again(source: Taint, reader: Statements) -> bool:
    """Whether the script goes through all from its beginning, and leaves out what was done by a count of its own."""
    counts = source.kind is TaintKind.CARRIED and source.name in reader.skips
    return bool(reader.skips) and not reader.loaders and (counts or source.kind is TaintKind.BEGINS)


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)


def _of_index(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{source.place} counts the batches of {source.loader!r} with {source.name!r}, and {used} depends on it: after "
        "a recovery the loader goes on where it stood, and the count begins anew",
        f"Count with state.step, or begin with enumerate({source.loader}, start=state.step % len({source.loader})) if "
        "each batch is committed.",
    )


def _of_cut(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} takes or leaves out a number of batches of {source.loader!r}, counted from where the loader goes on "
        "after a recovery",
        "End the pass by state.step (if state.step % N == 0: break), and leave out nothing by hand.",
    )


def _of_beginning(source: Taint, used: str) -> ReadFinding:
    begins = "begins" if source.name == "range" else f"begins {source.name!r}"
    depends = "" if used == source.place else f", and {used} depends on it"
    return ReadFinding(
        source.place,
        f"the loop at {source.place} {begins} at its first number again after a recovery{depends}",
        "Begin where the state stands: range(state.step, …), or for epoch in state.epochs(…).",
    )


def _of_carried(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{source.place} sets {source.name!r} for later steps, and {used} depends on it: a recovery calls the function "
        "again, and the name begins anew",
        "Keep it in an object with state_dict() and load_state_dict() that is given to TrainState (replicated={…}), or "
        "make it from state.step.",
    )


def _of_batch_ahead(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{source.name!r}, a batch that {source.place} fetches before the commit, is used behind it at {used}: after a "
        "recovery the loader goes on behind that batch, and it is lost",
        "Fetch it behind state.commit(), or at the beginning of its own step.",
    )


def _of_unbound(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} reads {source.name!r}, which only the loop over {source.loader!r} at {source.place} sets: after a "
        "recovery at an epoch's end that loop has nothing left to go over",
        f"Set {source.name} before the loop.",
    )


def _of_zero(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} divides by {source.name!r} or needs what is in it, and only the loop over {source.loader!r} at "
        f"{source.place} fills it: after a recovery at an epoch's end that loop has nothing left to go over",
        f"Ask before: if {source.name}: …",
    )


def _of_calls(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} sets the epoch of a sampler by {source.name!r}, which counts how often that was done: a recovery does "
        "it again",
        "Set it by the state's epoch: for epoch in state.epochs(…): sampler.set_epoch(epoch).",
    )


def _of_leaving(source: Taint, used: str) -> ReadFinding:
    del used
    return ReadFinding(
        source.place,
        f"{source.place} leaves its loop behind the commit: a recovery at that very step enters the loop again, and "
        "trains one batch more",
        "Ask before a batch is used: if state.step >= LAST: break, where LAST is made of the epoch if it ends one.",
        Weight.WARNED,
    )


def _of_handler(source: Taint, used: str) -> ReadFinding:
    del used
    return ReadFinding(
        source.place,
        f"{source.place} is reached at each recovery too: the error of the interrupted collective leaves the function "
        "there, which is then called again",
        "Do there nothing that must be done once alone.",
        Weight.WARNED,
    )


def _of_look(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} asks for a batch of {source.loader!r} as an epoch begins: after a recovery at an epoch's end there is "
        "none left, and it raises StopIteration",
        f"Give it a default, next(iter({source.loader}), None), or look at a batch of another loader.",
        Weight.WARNED,
        _LOOKS.format(used),
    )


def _of_look_with_default(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} looks at a batch of {source.loader!r} as an epoch begins",
        "",
        Weight.NOTED,
        _LOOKS.format(used),
    )


def _of_cleaning_up(source: Taint, used: str) -> ReadFinding:
    del used
    text = f"{source.place} cleans up in its {source.name!r} block"
    return ReadFinding(source.place, text, "", Weight.NOTED, f"{text}, which a healthy job runs only at its end")


def _of_epochs_change(source: Taint, used: str) -> ReadFinding:
    del used
    return ReadFinding(
        source.place,
        f"{source.place} makes {source.name!r} from itself once an epoch: a recovery within that epoch does it again",
        "Make it from the epoch, and from what it was at first (a rate: BASE * FACTOR ** epoch).",
    )


_WORDS: Final = {
    TaintKind.INDEX: _of_index,
    TaintKind.CUT: _of_cut,
    TaintKind.BEGINS: _of_beginning,
    TaintKind.CARRIED: _of_carried,
    TaintKind.AHEAD: _of_batch_ahead,
    TaintKind.UNBOUND: _of_unbound,
    TaintKind.ZERO: _of_zero,
    TaintKind.CALLS: _of_calls,
    TaintKind.LEAVES: _of_leaving,
    TaintKind.HANDLES: _of_handler,
    TaintKind.CLEANS_UP: _of_cleaning_up,
    TaintKind.EMPTY: _of_look,
    TaintKind.LOOKS: _of_look_with_default,
    TaintKind.AGAIN: _of_epochs_change,
}
