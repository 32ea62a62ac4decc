"""Facts about a value of the script, found without running it: its origin, and whether a recovery changes it.

Rules:

1. A value is *tainted* by a source if it is another one after a recovery than without a fault.
2. A name's value is *pending* once a commit has passed over it: it differs only for code that reads it in a later step.
3. Where two paths of the script meet, taints are joined. Of two roots, the one that a recovery corrects wins.
"""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple


class Missing:
    """Stand-in for an object or a constant that is not known."""


MISSING: Final = Missing()


class TaintKind(Enum):
    """Reason why a value is another one after a recovery."""

    INDEX = "counts the batches of a pass"
    CUT = "ends a pass after a number of batches"
    BEGINS = "begins at its first number again"
    CARRIED = "is carried from step to step"
    AHEAD = "is a batch that is fetched before a commit and used behind it"
    UNBOUND = "is not set if a pass is empty"
    ZERO = "is zero if a pass is empty"
    CALLS = "counts calls"
    EPOCHS = "counts the epochs of a sampler"
    LEAVES = "leaves a loop behind a commit"
    HANDLES = "handles errors of the training"
    CLEANS_UP = "cleans up behind the training"
    EMPTY = "asks for a batch that a pass may not have"
    LOOKS = "asks for a batch, or None, beside the pass"
    AGAIN = "is changed from itself once an epoch"
    RETURNED = "is gathered from step to step and returned"


class Taint(NamedTuple):
    """One reason why values differ after a recovery.

    Attributes:
        name: name of the script's variable, or of the function that stands in the script.
        place: `file:line` where it is set.
        loader: the part of the state whose pass is concerned; "" for none.
    """

    kind: TaintKind
    name: str
    place: str
    loader: str = ""


class Root(IntEnum):
    """Origin of a value."""

    FIXED = 0
    """Constants, and results of the set-up: they are the same when they are made again."""
    CLOCK = 1
    VARIES = 2
    """Batches that were trained with, results of a model, random numbers."""
    FRESH = 3
    """A batch of the state's loader that no commit has passed over."""
    EPOCH = 4
    """The state's epoch."""
    STEP = 5
    """The state's step."""


Taints = frozenset[Taint]
NONE: Final[Taints] = frozenset()


class Value(NamedTuple):
    """Facts about one value.

    Attributes:
        const: its value, if that is a constant of the script or a plain object of the set-up.
        obj: the object itself, if it was there before the function was called.
        part: whether it is a part of the training: a model, an optimizer, or something of one.
        head: the name whose value it has been since the beginning of the loop's turn.
        shape: facts about it as something to iterate over, or to unpack.
        behind: the source that leaves it unbound, if the pass before was empty.
        zero: the source that makes it zero then.
        held: whether it is a batch, or made from one alone, that was fetched before a commit and is used behind it.
    """

    taints: Taints = NONE
    pending: Taints = NONE
    root: Root = Root.FIXED
    const: Any = MISSING
    obj: Any = MISSING
    part: bool = False
    head: str = ""
    shape: "Elements | None" = None
    behind: Taint | None = None
    zero: Taint | None = None
    held: bool = False


class Elements(NamedTuple):
    """A value as something to iterate over or to unpack.

    Attributes:
        loader: the part of the state that it iterates over; "" for none.
        element: value of each turn; None: a batch, if there is a loader.
        items: the values that it consists of.
        cut: the source that ends it before its loader ends.
        epochs: whether it is `state.epochs()`.
        each: whether it gives each batch of its loader once, and nothing else: the loader itself, or a progress bar.
    """

    loader: str = ""
    element: Value | None = None
    items: tuple[Value, ...] | None = None
    cut: Taint | None = None
    epochs: bool = False
    each: bool = False


PLAIN: Final = Value()
VARYING: Final = Value(root=Root.VARIES)
BATCH: Final = Value(root=Root.FRESH)
AT_STEP: Final = Value(root=Root.STEP)
AT_EPOCH: Final = Value(root=Root.EPOCH)
AT_CLOCK: Final = Value(root=Root.CLOCK)


def combine(values: Iterable[Value]) -> Value:
    """Return the facts about a value that is computed from these values."""
    taints, pending, part = NONE, NONE, False
    roots = 0
    for value in values:
        if value.taints:
            taints |= value.taints
        if value.pending:
            pending |= value.pending
        part = part or value.part
        root = Root.VARIES if value.head and value.root is Root.FIXED else value.root
        roots |= 1 << root
    root = _of_roots(roots)
    if not (taints or pending or part):
        return _KNOWN[root]
    return Value(taints, pending, root, part=part)


def _of_roots(roots: int) -> Root:
    for root in (Root.CLOCK, Root.VARIES, Root.FRESH, Root.STEP, Root.EPOCH):
        if roots & (1 << root):
            return root
    return Root.FIXED


_KNOWN: Final = {
    Root.FIXED: PLAIN,
    Root.CLOCK: AT_CLOCK,
    Root.VARIES: VARYING,
    Root.FRESH: BATCH,
    Root.EPOCH: AT_EPOCH,
    Root.STEP: AT_STEP,
}


def merge(one: Value, other: Value) -> Value:
    """Return the facts that hold if a value may be either of two."""
    if one is other:
        return one
    return Value(
        one.taints | other.taints,
        one.pending | other.pending,
        max(one.root, other.root),
        one.const if _equal(one.const, other.const) else MISSING,
        one.obj if one.obj is other.obj else MISSING,
        one.part or other.part,
        one.head if one.head == other.head else "",
        one.shape if one.shape is other.shape else _merged(one.shape, other.shape),
        one.behind if other.behind is not None else None,
        one.zero or other.zero,
        one.held and other.held,
    )


def _merged(one: Elements | None, other: Elements | None) -> Elements | None:
    if one is None or other is None:
        return one or other
    if one.epochs or other.epochs:
        return one if one.epochs else other
    items = None
    if one.items is not None and other.items is not None and len(one.items) == len(other.items):
        items = tuple(map(merge, one.items, other.items))
    element = one.element if other.element is None else other.element if one.element is None else None
    if one.element is not None and other.element is not None:
        element = merge(one.element, other.element)
    cut = one.cut if other.cut is not None else None
    return Elements(one.loader or other.loader, element, items, cut)


def _equal(one: Any, other: Any) -> bool:
    return one is not MISSING and type(one) is type(other) and bool(one == other)


def comes_again(value: Value, first: Value | None, level: Root) -> bool:
    """Return whether a value is the same when the function is entered anew. `first`: first value of its name.

    `level`: the origin that it must have, if it is made from the state.
    """
    if value.root >= level or value.root is Root.CLOCK or (value.shape is not None and value.shape.loader):
        return True
    if value.root is not Root.FIXED:
        return False
    return value.const is MISSING or (first is not None and _equal(value.const, first.const))


class Env:
    """Values of one function's names at one place of it.

    Attributes:
        committed: whether a step was committed in this turn of the loop: 0 no, 1 perhaps, 2 yes.
        late: names that were set since that commit.
    """

    __slots__ = ("committed", "late", "names")

    def __init__(self, names: dict[str, Value], committed: int = 0, late: frozenset[str] = frozenset()) -> None:
        self.names, self.committed, self.late = names, committed, late

    def copy(self) -> "Env":
        """Return a copy with the same values."""
        return Env(self.names.copy(), self.committed, self.late)


def join(one: Env | None, other: Env | None) -> Env | None:
    """Return the values where two paths meet; None stands for a path that has ended."""
    if one is None or other is None:
        return other if one is None else one
    names = one.names.copy()
    for name, value in other.names.items():
        known = names.get(name)
        names[name] = value if known is None else merge(known, value)
    same = one.committed == other.committed
    return Env(names, one.committed if same else 1, one.late | other.late if same else frozenset())
