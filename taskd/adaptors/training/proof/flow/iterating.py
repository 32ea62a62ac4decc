"""Iterators of the script: loaders of the state, and the objects that are made around them.

Rules:

1. The state's loader goes on where it stood. A count beside it, or a cut of it, begins anew: it is a source of its own.
2. A count that begins at the state's step does not begin anew.
3. Neither does a call that goes on counting (`data/counts.py`). Candidates are known once the function has been read.
   If one of them matters, the function is read again.
"""

import ast
import builtins
import itertools
from collections.abc import Callable
from typing import Any, Final

from taskd.adaptors.training.data.counts import CountedCall, can_count_on
from taskd.adaptors.training.proof.flow.functions import Functions
from taskd.adaptors.training.proof.flow.scope import Scope
from taskd.adaptors.training.proof.flow.values import (
    MISSING,
    PLAIN,
    VARYING,
    Elements,
    Root,
    Taint,
    TaintKind,
    Value,
    combine,
)


class Iterating(Functions):
    """Reader of calls that make something to iterate over."""

    def enumerated(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the value of `enumerate(loader)`. Its number begins anew, unless it starts at the state's step."""
        over = arguments[0] if arguments else PLAIN
        start = words.get("start", arguments[1] if len(arguments) > 1 else PLAIN)
        shape = over.shape
        if shape is None or not (shape.loader or shape.epochs):
            return combine([over])._replace(
                shape=Elements(element=Value(shape=Elements(items=(VARYING, self.element(over)))))
            )
        counts_on = not start.taints and start.root is Root.FIXED and self._counts_on(node, over)
        if shape.epochs or start.root is Root.STEP or counts_on:
            number = Value(root=Root.STEP)
        else:
            source = Taint(TaintKind.INDEX, "enumerate", self.frame.place(node), shape.loader)
            number = Value(start.taints | {source}, root=Root.VARIES)
        return Value(shape=shape._replace(element=Value(shape=Elements(items=(number, self.element(over))))))

    def zipped(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the value of `zip(range(n), loader)` and the like. Items beside a loader begin anew."""
        shapes = [one.shape or Elements() for one in arguments]
        loader = next((one.loader for one in shapes if one.loader), "")
        if not loader:
            return self._whole(node, arguments, words)
        items = tuple(map(self.element, arguments))
        beside = [one for one in shapes if not one.loader]
        over = next(one for one in arguments if one.shape is not None and one.shape.loader)
        ranges = [arg for arg, one in zip(node.args, shapes, strict=False) if _is_range(one)]
        if (
            len(ranges) == len(beside) == len(shapes) - 1
            and self._is_itself(over)
            and self._counts_on(node, over, *ranges)
        ):
            items = tuple(
                Value(root=Root.STEP) if _is_range(one) else item for one, item in zip(shapes, items, strict=True)
            )
            beside = []
        cut = Taint(TaintKind.CUT, "zip", self.frame.place(node), loader) if any(one.cut for one in beside) else None
        return Value(shape=Elements(loader, Value(shape=Elements(items=items)), cut=cut))

    def ranged(self, node: ast.Call, arguments: list[Value], _: dict[str, Value]) -> Value:
        """Return the value of `range` or `count`, which begins anew unless the state's step or epoch is in it."""
        whole = combine(arguments)
        if whole.root in (Root.STEP, Root.EPOCH):
            return whole._replace(shape=Elements(element=whole))
        name = "count" if getattr(node.func, "id", getattr(node.func, "attr", "")) == "count" else "range"
        source = Taint(TaintKind.BEGINS, name, self.frame.place(node))
        element = Value(whole.taints | {source}, root=Root.VARIES)
        return whole._replace(shape=Elements(element=element, cut=None if name == "count" else source))

    def sliced(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the value of `islice`.

        `islice(loader, n)` counts anew. `islice(loader, done, None)` leaves out finished batches twice.
        """
        over, *bounds = arguments or [PLAIN]
        if over.shape is None or not over.shape.loader or not bounds:
            return self._whole(node, arguments, words)
        start, stop = (PLAIN, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        skips = len(bounds) > 1 and start.const not in (0, None)
        counts = stop.const is not None and stop.root is not Root.STEP
        cut = Taint(TaintKind.CUT, "islice", self.frame.place(node), over.shape.loader) if skips or counts else None
        if cut is not None and len(bounds) == 1 and self._is_itself(over) and self._counts_on(node, over):
            cut = None
        return over._replace(shape=over.shape._replace(cut=cut, each=False))

    def iterator(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the value of `iter(loader)` and of similar calls: it may stand in the midst of a pass."""
        if len(arguments) != 1:
            return self._whole(node, arguments, words)
        shape = arguments[0].shape
        return arguments[0] if shape is None else arguments[0]._replace(obj=MISSING, shape=shape._replace(each=False))

    def next_of(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the next batch, if the iterator gives batches."""
        over = arguments[0] if arguments else PLAIN
        if over.shape is None or not (over.shape.loader or over.shape.element):
            return combine([VARYING, *arguments])
        self.goes_over(over)
        made_here = isinstance(node.args[0], ast.Call)
        loop = self.frame.loops[-1] if self.frame.loops else None
        if made_here and over.shape.loader and loop is not None and loop.nested and self.in_epochs():
            kind = TaintKind.EMPTY if len(arguments) == 1 else TaintKind.LOOKS
            self.find(Taint(kind, "next", self.frame.place(node), over.shape.loader), node)
        return self.element(over)

    def _is_itself(self, over: Value) -> bool:
        """Return whether a value is a loader itself, and nothing around one."""
        return id(over.obj) in self.loaders

    def _counts_on(self, node: ast.Call, over: Value, *parts: ast.AST) -> bool:
        """Return whether this call goes on counting. If it could, record it by its place and those of `parts`."""
        place, name, shape = self.frame.place(node), getattr(node.func, "id", ""), over.shape
        outer = _outermost(self.frame)
        function: Any = outer.function
        if not name or function is None or shape is None or not shape.each or shape.loader not in self.counting:
            return False
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        call = CountedCall(function, name, place, lines, shape.loader)
        if call in self.counted:
            return True
        self.texts[function] = outer.node
        self.countable |= {(one, shape.loader): call for one in (place, *map(self.frame.place, parts))}
        return False

    def _whole(self, _: ast.AST, arguments: list[Value], words: dict[str, Value]) -> Value:
        return combine([*arguments, *words.values()])

    def iterating(self, called: Any) -> Callable[..., Value] | None:
        """Return the reader of a call of this object; None if it makes nothing to iterate over."""
        hashable = isinstance(called, type) or type(called) is type(len)
        return _KNOWN.get(called) if hashable else None


def _outermost(frame: Scope) -> Scope:
    """Return the outermost function around this one."""
    while frame.function is None and frame.outer is not None:
        frame = frame.outer
    return frame


def can_go_on(call: CountedCall, text: ast.AST) -> bool:
    """Return whether a call can go on counting. `text`: tree of its function, where the name may only be called."""
    function: Any = call.function
    return can_count_on(function, call.name) and _is_only_called(call.name, text)


def _is_only_called(name: str, function: ast.AST) -> bool:
    called = {id(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)}
    uses = (one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == name)
    return all(id(one) in called for one in uses)


def _is_range(shape: Elements) -> bool:
    """Return whether it is a `range` that begins anew."""
    return shape.cut is not None and shape.cut.kind is TaintKind.BEGINS and not shape.loader


_KNOWN: Final[dict[Any, Callable[..., Value]]] = {
    builtins.enumerate: Iterating.enumerated,
    builtins.zip: Iterating.zipped,
    builtins.range: Iterating.ranged,
    builtins.iter: Iterating.iterator,
    builtins.next: Iterating.next_of,
    builtins.reversed: Iterating.iterator,
    itertools.islice: Iterating.sliced,
    itertools.count: Iterating.ranged,
    itertools.chain: Iterating.iterator,
    itertools.cycle: Iterating.iterator,
}
