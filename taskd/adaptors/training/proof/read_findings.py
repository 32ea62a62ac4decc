"""Findings in the text of a training function: descriptions of what a recovery changes, and the effect on the job."""

from enum import Enum
from typing import Final, NamedTuple

from taskd.adaptors.training.proof.flow.values import Taint, TaintKind

_KEEP: Final = (
    "Keep it in an object with state_dict() and load_state_dict() that is given to TrainState (replicated={…})"
)
_LOOKS: Final = "{} looks at a batch, and would get another one in a step that is done twice"


class Weight(Enum):
    """Effect of a finding on the job."""

    REFUSED = "at a fault all processes start anew"
    AHEAD = "the same, until the step that is done twice shows that the batch is handed out again"
    UNTIL_PROVEN = "the same, until the step that is done twice comes out the same"
    NOTED = "nothing, and nobody is warned: it is exact after a recovery"
    WARNED = "a recovery at a single step, or something beside the training, is not exact: a warning, and no more"


class ReadFinding(NamedTuple):
    """One place in the script that is not exact after a recovery.

    Attributes:
        line: `file:line` of the script.
        text: description of the finding, and of the effect of a recovery.
        remedy: code to write in its place.
        weight: effect on the job.
        hinders: reason why the self-check then does no step twice; "" if it may.
    """

    line: str
    text: str
    remedy: str
    weight: Weight = Weight.REFUSED
    hinders: str = ""


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
        f"{_KEEP}, or make it from state.step.",
    )


def _of_batch_ahead(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{source.name!r}, a batch that {source.place} fetches before the commit, is used behind it at {used}: after a "
        "recovery the loader goes on behind that batch, and it is lost",
        "Fetch it behind state.commit(), or at the beginning of its own step.",
        Weight.AHEAD,
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
        f"{used} sets an epoch by {source.name!r}, which counts how often that was done: a recovery does it again",
        "Set it by the state's epoch: for epoch in state.epochs(…): sampler.set_epoch(epoch).",
    )


def _of_epochs(source: Taint, used: str) -> ReadFinding:
    return _of_calls(source, used)._replace(weight=Weight.UNTIL_PROVEN)


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


def _of_returned(source: Taint, used: str) -> ReadFinding:
    return ReadFinding(
        source.place,
        f"{used} returns {source.name!r}, which {source.place} sets from step to step: after a recovery it knows only "
        "the steps since",
        f"{_KEEP}.",
        Weight.WARNED,
    )


WORDS: Final = {
    TaintKind.INDEX: _of_index,
    TaintKind.CUT: _of_cut,
    TaintKind.BEGINS: _of_beginning,
    TaintKind.CARRIED: _of_carried,
    TaintKind.AHEAD: _of_batch_ahead,
    TaintKind.UNBOUND: _of_unbound,
    TaintKind.ZERO: _of_zero,
    TaintKind.CALLS: _of_calls,
    TaintKind.EPOCHS: _of_epochs,
    TaintKind.LEAVES: _of_leaving,
    TaintKind.HANDLES: _of_handler,
    TaintKind.CLEANS_UP: _of_cleaning_up,
    TaintKind.EMPTY: _of_look,
    TaintKind.LOOKS: _of_look_with_default,
    TaintKind.AGAIN: _of_epochs_change,
    TaintKind.RETURNED: _of_returned,
}
