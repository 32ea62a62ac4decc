"""What the script goes over: loaders of the state, and what is made around them.

Rules:

1. The state's loader goes on where it stood. What counts beside it, or cuts it, begins anew: a source of its own.
2. What begins at the state's step does not.
"""

import ast
import builtins
import itertools
from collections.abc import Callable
from typing import Any, Final

from taskd.adaptors.training.proof.flow.functions import Functions
from taskd.adaptors.training.proof.flow.values import PLAIN, VARYING, Elements, Root, Taint, TaintKind, Value, combine


class Iterating(Functions):
    """Reads calls that make something to go over."""

    def enumerated(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """`enumerate(loader)`: its number begins anew, unless it starts at the state's step."""
        over = arguments[0] if arguments else PLAIN
        start = words.get("start", arguments[1] if len(arguments) > 1 else PLAIN)
        shape = over.shape
        if shape is None or not (shape.loader or shape.epochs):
            return combine([over])._replace(
                shape=Elements(element=Value(shape=Elements(items=(VARYING, self.element(over)))))
            )
        if shape.epochs or start.root is Root.STEP:
            number = Value(root=Root.STEP)
        else:
            source = Taint(TaintKind.INDEX, "enumerate", self.frame.place(node), shape.loader)
            number = Value(start.taints | {source}, root=Root.VARIES)
        return Value(shape=shape._replace(element=Value(shape=Elements(items=(number, self.element(over))))))

    def zipped(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """`zip(range(n), loader)` and the like: what beside a loader begins anew."""
        shapes = [one.shape or Elements() for one in arguments]
        loader = next((one.loader for one in shapes if one.loader), "")
        if not loader:
            return self._whole(node, arguments, words)
        items = map(self.element, arguments)
        ends = any(one.cut and not one.loader for one in shapes)
        cut = None if not ends else Taint(TaintKind.CUT, "zip", self.frame.place(node), loader)
        return Value(shape=Elements(loader, Value(shape=Elements(items=tuple(items))), cut=cut))

    def ranged(self, node: ast.Call, arguments: list[Value], _: dict[str, Value]) -> Value:
        """`range` and `count`: they begin anew unless the state's step is in them."""
        whole = combine(arguments)
        if whole.root in (Root.STEP, Root.EPOCH):
            return whole._replace(shape=Elements(element=whole))
        name = "count" if getattr(node.func, "id", getattr(node.func, "attr", "")) == "count" else "range"
        source = Taint(TaintKind.BEGINS, name, self.frame.place(node))
        element = Value(whole.taints | {source}, root=Root.VARIES)
        return whole._replace(shape=Elements(element=element, cut=None if name == "count" else source))

    def sliced(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """`islice(loader, n)`: it counts anew; `islice(loader, done, None)`: what is done is left out twice."""
        over, *bounds = arguments or [PLAIN]
        if over.shape is None or not over.shape.loader or not bounds:
            return self._whole(node, arguments, words)
        start, stop = (PLAIN, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        skips = len(bounds) > 1 and start.const not in (0, None)
        counts = stop.const is not None and stop.root is not Root.STEP
        cut = Taint(TaintKind.CUT, "islice", self.frame.place(node), over.shape.loader) if skips or counts else None
        return over._replace(shape=over.shape._replace(cut=cut))

    def iterator(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """`iter(loader)`, and what else goes over the same."""
        return arguments[0] if len(arguments) == 1 else self._whole(node, arguments, words)

    def next_of(self, node: ast.Call, arguments: list[Value], words: dict[str, Value]) -> Value:
        """The next batch, if it is one."""
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

    def _whole(self, _: ast.AST, arguments: list[Value], words: dict[str, Value]) -> Value:
        return combine([*arguments, *words.values()])

    def iterating(self, called: Any) -> Callable[..., Value] | None:
        """What reads a call of that; None if it makes nothing to go over."""
        hashable = isinstance(called, type) or type(called) is type(len)
        return _KNOWN.get(called) if hashable else None


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
