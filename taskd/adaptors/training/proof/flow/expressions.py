"""Expressions of the script: facts about their values.

Rules:

1. Nothing of the script is evaluated. A name's object is looked up, and calls of the script's functions are read.
2. If a value that a recovery changes reaches code that moves the training, that is an effect.
3. An unknown value counts as one that a recovery leaves as it was: it is not reported.
"""

import ast
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch.utils.data import DataLoader, Sampler

from taskd.adaptors.training.data.counts import CountedCall
from taskd.adaptors.training.data.indices import samplers
from taskd.adaptors.training.data.loop_names import KeptNames
from taskd.adaptors.training.proof.flow.counting import AlignedCounts
from taskd.adaptors.training.proof.flow.meanings import is_part, is_plain
from taskd.adaptors.training.proof.flow.scope import Closure, Scope, assigned, member, names_in
from taskd.adaptors.training.proof.flow.values import (
    AT_EPOCH,
    AT_STEP,
    BATCH,
    MISSING,
    NONE,
    PLAIN,
    VARYING,
    Elements,
    Root,
    Taint,
    TaintKind,
    Taints,
    Value,
    combine,
    merge,
)
from taskd.adaptors.training.script.script_text import FUNCTIONS

_MOST_NODES: Final = 25_000
"""Most expressions and statements that are read, counted each time that they are: some 50 ms."""


class TooMuch(Exception):  # noqa: N818 - a limit, and no error
    """Raised if the script is too long to be read in the time allowed."""


class Expressions:
    """Reader of expressions. `findings`: sources that reach the training, each with the place and the text there.

    Args:
        state: the `TrainState`.
        parts: its parts by name.
        loaders: names of the state's loaders, by the ids of the objects that a script may have for them.
        counting: names of the loaders whose batches a call can go on counting after a recovery.
        keeping: names of the loaders whose loops can have names kept that they leave behind.
        counted: calls that go on counting.
        kept: names that are kept.

    Attributes:
        countable: calls that could go on counting, by the place of the object that they count, and the loader.
        texts: text of each function with such a call.
        keepable: names that could be kept, by the sources that would leave them unbound.
        complete: whether all was read.
    """

    def __init__(
        self, state: Any, parts: Mapping[str, Any], loaders: Mapping[int, str],
        counting: Container[str] = (), keeping: Container[str] = (),
        counted: Iterable[CountedCall] = (), kept: Iterable[KeptNames] = (),
    ) -> None:  # fmt: skip
        self.state, self.parts, self.loaders, self.counting, self.keeping = state, parts, loaders, counting, keeping
        self.counted = frozenset(counted)
        self.kept = tuple(kept)
        self.countable: dict[tuple[str, str], CountedCall] = {}
        self.texts: dict[Any, ast.AST] = {}
        self.keepable: dict[Taint, KeptNames] = {}
        self.complete = True
        self.part_ids = frozenset(
            id(part) for part in parts.values() if id(part) not in loaders and not isinstance(part, Sampler)
        )
        torchs = [part for part in parts.values() if isinstance(part, DataLoader)]
        self.data_ids = frozenset(id(one) for loader in torchs for one in (loader.dataset, *samplers(loader)))
        self.findings: dict[Taint, tuple[str, str]] = {}
        self.right: set[Taint] = set()
        self.frames: list[Scope] = []
        self.control: Taints = NONE
        self.anchored = False
        self.asks_first = self.timed = False
        self.skips: set[str] = set()
        self._guards: list[frozenset[str]] = []
        self._nodes = 0
        self.aligned = AlignedCounts()

    @property
    def frame(self) -> Scope:
        """Function that is being read."""
        return self.frames[-1]

    def in_epochs(self) -> bool:
        """Return whether a loop over `state.epochs()` is being read."""
        return any(loop.epochs for frame in self.frames for loop in frame.loops)

    def count_node(self) -> None:
        """Count one more expression or statement. Raise `TooMuch` at the limit."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise TooMuch

    def effect(self, node: Any, sources: Taints = NONE) -> None:
        """Record that the training is moved here, by values that these sources have changed, or under a condition."""
        for source in sources | self.control:
            self.find(source, node)

    def find(self, source: Taint, node: Any) -> None:
        """Record that a source matters, with the first node where it does."""
        if source not in self.findings:
            text = "" if isinstance(node, (*FUNCTIONS, ast.For, ast.While)) else ast.unparse(node)
            self.findings[source] = self.frame.place(node), text.partition("\n")[0][:60]

    @contextmanager
    def under(self, test: Value, names: frozenset[str] = frozenset()) -> Iterator[None]:
        """Hold a condition under which the code is run that is read in the body."""
        control, anchored, timed = self.control, self.anchored, self.timed
        self.control = control | test.taints
        self.anchored = anchored or test.root >= Root.EPOCH
        self.timed = timed or test.root is Root.CLOCK
        self._guards.append(names)
        try:
            yield
        finally:
            self.control, self.anchored, self.timed = control, anchored, timed
            self._guards.pop()

    def read(self, node: ast.AST | None) -> Value:
        """Return the facts about an expression's value."""
        if node is None:
            return PLAIN
        self.count_node()
        known = _KINDS.get(type(node))
        return self._all(node) if known is None else known(self, node)

    def _all(self, node: ast.AST) -> Value:
        return combine([self.read(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def of_object(self, obj: Any) -> Value:
        """Return the facts about an object that was there before."""
        if obj is MISSING:
            return PLAIN
        loader = self.loaders.get(id(obj), "")
        return Value(
            const=obj if is_plain(obj) else MISSING,
            obj=obj,
            part=id(obj) in self.part_ids or is_part(obj),
            shape=Elements(loader, each=True) if loader else None,
        )

    # The kinds of expressions.

    def _constant(self, node: ast.Constant) -> Value:
        return Value(const=node.value) if is_plain(node.value) else PLAIN

    def _name(self, node: ast.Name) -> Value:
        frame: Scope | None = self.frame
        while frame is not None:
            found = None if frame.env is None else frame.env.names.get(node.id)
            if found is not None:
                if found.behind is not None and not self._is_guarded():
                    self.find(found.behind, node)
                return found if found.behind is None else found._replace(behind=None)
            if frame.outer is None or (frame.function is not None and node.id in frame.outside):
                break
            frame = frame.outer
        return self.of_object(self.frame.known(node.id))

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.read(node.value)
        if owner.obj is self.state:
            return self.of_state(node.attr)
        found = member(owner.obj, node.attr)
        value = PLAIN if found is MISSING else self.of_object(found)
        if not (owner.taints or owner.pending or owner.part or owner.root or owner.head):
            return value
        known = combine([owner])
        return known._replace(obj=value.obj, part=owner.part or value.part, shape=value.shape)

    def of_state(self, name: str) -> Value:
        """Return the value of an attribute of the state."""
        if name in ("step", "epoch"):
            return AT_STEP if name == "step" else AT_EPOCH
        if name == "commit":
            return Value(obj=member(self.state, name))
        return self.of_object(self.parts.get(name, MISSING))

    def _subscript(self, node: ast.Subscript) -> Value:
        owner, key = self.read(node.value), self.read(node.slice)
        at = key.const
        if owner.zero is not None and type(at) is int and owner.root is not Root.FIXED:
            self.divide(node.value, node, owner)
        items = None if owner.shape is None else owner.shape.items
        if items is not None and type(at) is int and -len(items) <= at < len(items):
            return items[at]
        obj = owner.obj
        if type(obj) in (dict, list, tuple) and at is not MISSING:
            try:
                found = self.of_object(obj[at])
            except (KeyError, IndexError, TypeError):
                found = PLAIN
            return found._replace(part=True) if owner.part else found
        return combine([owner, key])

    def _operation(self, node: ast.BinOp) -> Value:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            self.divide(node.right, node, right)
        if isinstance(node.op, ast.Mod) and left.taints:
            kept = self.aligned.misaligned(node, left.taints, self.frame.loops)
            left = left._replace(taints=kept)
        return combine((left, right))

    def divide(self, divisor: ast.AST, node: Any, value: Value) -> None:
        """Find a value that an empty pass makes zero or empty, where it must not be so and no condition guards it."""
        if value.zero is not None and not any(names_in(divisor) & guarded for guarded in self._guards):
            self.find(value.zero, node)

    def _is_guarded(self) -> bool:
        """Return whether this is done only if a name of an empty pass has a value."""
        env = self.frame.env
        names = [name for guarded in self._guards for name in guarded]
        values = [env.names[name] for name in names if env is not None and name in env.names]
        return any(value.zero is not None or value.behind is not None for value in values)

    def _comparison(self, node: ast.Compare) -> Value:
        values = [self.read(node.left), *map(self.read, node.comparators)]
        if any(value.root is Root.STEP for value in values):
            begins = {one for value in values for one in value.taints if one.kind is TaintKind.BEGINS}
            if begins:  # the script skips finished work itself
                self.right |= begins
                values = [value._replace(taints=value.taints - begins) for value in values]
        return combine(values)

    def _choice(self, node: ast.IfExp) -> Value:
        test = self.read(node.test)
        with self.under(test, names_in(node.test)):
            value = merge(self.read(node.body), self.read(node.orelse))
        return value._replace(taints=value.taints | test.taints) if test.taints else value

    def _sequence(self, node: Any) -> Value:
        items = tuple(map(self.read, node.elts))
        whole = combine(items)
        if isinstance(node, ast.List) and not items:
            return Value(const=())
        return whole._replace(shape=Elements(items=items)) if isinstance(node, ast.Tuple) else whole

    def _bound_name(self, node: ast.NamedExpr) -> Value:
        value = self.read(node.value)
        self.bind(node.target, value)
        return value

    def _function(self, node: ast.Lambda) -> Value:
        return self.closure(node)

    def closure(self, node: Any) -> Value:
        """Return the value of a function that is defined here: it has the taints of the names that it reads."""
        env = self.frame.env
        own = assigned(node) if not isinstance(node, ast.Lambda) else {}
        read = [env.names[name] for name in names_in(node) if env is not None and name in env.names and name not in own]
        whole = combine(read)
        return Value(whole.taints, whole.pending, obj=Closure(node, self.frame))

    def _comprehension(self, node: Any) -> Value:
        env = self.frame.env
        assert env is not None
        before, read = env.names.copy(), []
        for turn in node.generators:
            value = self.read(turn.iter)
            read.append(value)
            element = self.element(value)
            if value.shape is None and value.root in (
                Root.STEP,
                Root.EPOCH,
            ):  # all of them together are a function of it
                element = element._replace(root=value.root)
            self.bind(turn.target, element)
            read.extend(map(self.read, turn.ifs))
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        read.extend(map(self.read, results))
        env.names = before
        return combine(read)

    def _yield(self, node: ast.Yield) -> Value:
        frame = self.frame
        frame.given.append(self.read(node.value))
        if frame.yields:
            self.effect(node)
            self.cross(frame)
        return VARYING

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        value, frame = self.read(node.value), self.frame
        self.goes_over(value)
        frame.given.append(self.element(value))
        if frame.yields:
            self.effect(node)
            self.cross(frame)
        return VARYING

    def element(self, value: Value) -> Value:
        """Return the value that a turn over this value gives."""
        shape = value.shape
        if shape is not None and shape.element is not None:
            return shape.element
        if shape is not None and shape.loader:
            return BATCH._replace(taints=value.taints, pending=value.pending)
        if shape is not None and shape.items:
            first, *others = shape.items
            for other in others:
                first = merge(first, other)
            return first
        whole = combine([value])
        if whole.root in (Root.FRESH, Root.FIXED):
            return whole
        return Value(whole.taints, whole.pending, Root.VARIES, part=whole.part)

    def goes_over(self, value: Value) -> None:
        """Record that the function may iterate here over a loader of the state."""
        if value.shape is not None and value.shape.loader and not self.frame.passes:
            self.frame.passes = value.shape.loader

    # Implemented by the readers of statements and calls.

    def call(self, node: ast.Call) -> Value:
        """Return the value of a call."""
        raise NotImplementedError

    def bind(self, target: ast.AST, value: Value) -> None:
        """Give a value to a name, or to any other target."""
        raise NotImplementedError

    def cross(self, frame: Scope) -> None:
        """Mark the values of this function's names: a step is committed while the function is at this place."""
        raise NotImplementedError


_KINDS: Final[dict[type, Callable[[Any, Any], Value]]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.BinOp: Expressions._operation,
    ast.Compare: Expressions._comparison,
    ast.IfExp: Expressions._choice,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.NamedExpr: Expressions._bound_name,
    ast.Lambda: Expressions._function,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Yield: Expressions._yield,
    ast.YieldFrom: Expressions._yield_from,
    ast.Call: lambda self, node: self.call(node),
}
