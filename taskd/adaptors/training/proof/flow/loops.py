"""Loops of the script: how values pass from turn to turn, and over a commit.

Rules:

1. A loop is read until the values at its head no longer change, at most three times.
2. At a commit each name that the loop sets is *pending*, unless it comes again (`comes_again`): a function that is
   entered anew there has the first value of the name. At the end of the loop's turn, a pending value counts as changed.
3. Behind a loop over a loader, in an epoch of `state.epochs()`, names that the loop alone sets may be unbound: a
   recovery at the epoch's end goes on with an empty pass. Such names can be kept (`data/loop_names.py`), if no line
   behind the commit sets them and the loop ends with its loader.
"""

import ast
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.data.loop_names import KeptNames
from taskd.adaptors.training.proof.flow.calls import Calls
from taskd.adaptors.training.proof.flow.scope import Loop, Scope, code_of, inside, live_at_head
from taskd.adaptors.training.proof.flow.values import (
    NONE,
    PLAIN,
    Elements,
    Env,
    Root,
    Taint,
    TaintKind,
    Value,
    combine,
    comes_again,
    join,
)
from taskd.adaptors.training.script.script_text import LOOPS

_TURNS: Final = 3
UNNAMED: Final = ("enumerate", "range", "count")
"""Names of sources whose variable in the script is not known yet."""


class Loops(Calls):
    """Reader of loops."""

    def for_loop(self, node: Any) -> None:
        """Read a `for` loop."""
        over = self._iterated(self.read(node.iter))
        self.goes_over(over)
        loop = self._loop(node)
        shape = over.shape or Elements()
        element = self.element(over)
        loop.epochs = shape.epochs
        if not loop.commits:
            element = _of_one_step(element)
        if loop.commits and not shape.epochs and element.root is Root.STEP and loop.nested:
            element = element._replace(root=Root.EPOCH)
        if loop.commits and over.taints:
            self.effect(node, over.taints)

        def begin() -> None:
            self.bind(node.target, element)

        with self.under(combine([over]) if not loop.commits else PLAIN):
            loop.ends = shape.each and shape.cut is None
            self._go_round(node, loop, begin, passes=shape.loader)
        if shape.cut is not None and loop.commits and not loop.bounded:
            self.find(shape.cut, node.iter if shape.loader else node)

    def while_loop(self, node: ast.While) -> None:
        """Read a `while` loop."""
        loop = self._loop(node)
        tests: list[Value] = []

        def begin() -> None:
            tests.append(self.read(node.test))
            self._asks(tests[-1].root is Root.STEP)
            if loop.commits:
                self.effect(node, tests[-1].taints)

        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._go_round(node, loop, begin, endless=endless)

    def _asks(self, by_step: bool) -> None:
        """Record whether the step decides here to go on, before a commit of this turn: a recovery passes here."""
        env = self.frame.env
        self.asks_first = self.asks_first or (by_step and env is not None and not env.committed)

    def _loop(self, node: Any) -> Loop:
        env = self.frame.env
        assert env is not None
        commits = self.commits(node)
        loops = (one for one in inside(node) if isinstance(one, LOOPS) and one is not node) if commits else ()
        inner = tuple(one for one in loops if self.commits(one))
        nested = bool(inner) or (commits and self._calls_loops(node))
        first = self.firsts.setdefault(id(node), env.names.copy())
        return Loop(node, commits=commits, nested=nested, inner=inner, first=first)

    def _calls_loops(self, node: Any) -> bool:
        """Return whether a function that is called in it has a loop in which steps are committed."""
        for one in inside(node):
            if isinstance(one, ast.Call):
                code = self.code_of(self.called_quietly(one.func, self.frame)[0])
                if code is not None and self.commits(code.node, self.frame_of(code)):
                    frame = self.frame_of(code)
                    if any(isinstance(two, LOOPS) and self.commits(two, frame) for two in inside(code.node)):
                        return True
        return False

    def _iterated(self, over: Value) -> Value:
        """Return the value that a loop iterates over; for an object of the script the value of its `__iter__`."""
        kind = type(over.obj)
        found = kind.__dict__.get("__iter__")
        if over.shape is not None or not isinstance(found, FunctionType) or not is_users(found.__code__.co_filename):
            return over
        code = code_of(MethodType(found, over.obj))
        return over if code is None else self.own_call(code, [], {})

    def _go_round(
        self, node: Any, loop: Loop, begin: Callable[[], None], *, passes: str = "", endless: bool = False
    ) -> None:
        frame = self.frame
        first = frame.env
        assert first is not None
        back: Env | None
        live = live_at_head(node)
        frame.loops.append(loop)
        head: Env | None = first.copy()
        left: Env | None = None
        for _ in range(_TURNS if loop.commits else 2):
            assert head is not None
            loop.breaks, loop.continues = [], []
            frame.env = self._at_head(head, loop)
            begin()
            self.run_block(node.body)
            back = frame.env
            for one in loop.continues:
                back = join(back, one)
            self._turned(loop, back)
            left = _all_of(loop.breaks)
            if back is None or not _grows(head, back, live):
                head = join(head, back)
                break
            head = join(head, back)
        frame.loops.pop()
        self._turned(loop, left)
        if not endless and head is not None:
            frame.env = head.copy()
            self.run_block(node.orelse)
            left = join(left, frame.env)
        frame.env = left
        self._behind(loop, first, passes)

    def _at_head(self, head: Env, loop: Loop) -> Env:
        env = head.copy()
        for name in loop.assigned:
            value = env.names.get(name)
            if value is not None and not value.head:
                env.names[name] = value._replace(head=name)
        env.committed, env.late = (0, frozenset()) if loop.commits else (env.committed, env.late)
        return env

    def cross(self, frame: Scope) -> None:
        """Mark the values of this function's names: a step is committed while the function is at this place."""
        env = frame.env
        if env is None:
            return
        loop = frame.loops[-1] if frame.loops else None
        if loop is not None:
            names, first = loop.assigned, loop.first
        else:
            names, first = (frame.assigned if frame is not self.frames[0] else {}), {}
        for name, value in env.names.items():
            held = value.root is Root.FRESH
            if held:
                kind = TaintKind.AHEAD
            elif value.held or name not in names or value.head == name:
                continue
            elif not comes_again(value, first.get(name), Root.STEP):
                kind = TaintKind.CARRIED
            else:
                continue
            line = names.get(name) or frame.assigned.get(name, frame.node.lineno)
            source = Taint(kind, name, f"{frame.file}:{line}")
            root = max(Root.VARIES, _kept(value.root))
            env.names[name] = value._replace(pending=value.pending | {source}, root=root, held=held)
        env.committed, env.late = 2, frozenset()

    def _turned(self, loop: Loop, env: Env | None) -> None:
        """End the loop's turn: pending values are changed now, and values set since the commit are carried on."""
        if env is None:
            return
        for name, value in env.names.items():
            if value.pending:
                env.names[name] = value._replace(taints=value.taints | value.pending, pending=NONE)
        if not loop.commits or not env.committed:
            return
        level = Root.EPOCH if loop.nested else Root.STEP
        for name, line in (loop.carried() if loop.nested else loop.assigned).items():
            value = env.names.get(name, PLAIN)
            fetched = value.root is Root.FRESH or value.held
            if value.head == name or fetched or not (loop.nested or name in env.late):
                continue
            if not comes_again(value, loop.first.get(name), level):
                source = Taint(TaintKind.CARRIED, name, f"{self.frame.file}:{line}")
                env.names[name] = value._replace(taints=value.taints | {source})

    def _behind(self, loop: Loop, first: Env, passes: str) -> None:
        """Release the loop's names from its head, and find those that an empty pass may leave unset or zero."""
        env = self.frame.env
        if env is None:
            return
        if loop.commits:
            env.committed = 1
        for name in loop.assigned:
            value = env.names.get(name)
            if value is not None and value.head == name:
                env.names[name] = value._replace(head="")
        if not (passes and loop.commits and self.in_epochs()):
            return
        place = self.frame.place(loop.node)
        kept = self._kept_names(loop, passes)
        unbound: dict[str, Taint] = {}
        for name in loop.assigned:
            value, known = env.names.get(name), first.names.get(name)
            if value is None or name in kept:
                continue
            if known is None:
                unbound[name] = source = Taint(TaintKind.UNBOUND, name, place, passes)
                env.names[name] = value._replace(behind=source)
            elif known.const in (0, ()) and known.const is not False and not known.taints:
                unbound[name] = source = Taint(TaintKind.ZERO, name, place, passes)
                env.names[name] = value._replace(zero=source)
        if unbound:
            self._note_keepable(loop, passes, unbound)

    def _note_keepable(self, loop: Loop, passes: str, unbound: dict[str, Taint]) -> None:
        """Record names that can be kept: their loop ends with its loader, and commits in a frame on the stack."""
        frame = self.frame
        sites = self.aligned.sites.get(id(loop.node), set())
        commits = tuple(_lines(one) for one in inside(loop.node) if id(one) in sites)
        waits = any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inside(frame.node))
        if passes not in self.keeping or not loop.ends or loop.breaks or not commits or waits:
            return
        others = loop.assigned.keys() & _read_beside(loop, frame.node) - loop.late
        whole = KeptNames(passes, frame.file, *_lines(loop.node), commits, (), tuple(sorted(others)))
        self.keepable |= {
            source: whole._replace(names=(name,)) for name, source in unbound.items() if name not in loop.late
        }

    def _kept_names(self, loop: Loop, passes: str) -> set[str]:
        """Return the names that this loop leaves behind even after an empty pass."""
        here = passes, self.frame.file, loop.node.lineno
        return {name for one in self.kept if (one.loader, one.file, one.first) == here for name in one.names}


def _read_beside(loop: Loop, function: ast.AST) -> set[str]:
    """Return the names that a function reads outside of a loop's own lines."""
    first, last = _lines(loop.node)
    names = (one for one in inside(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return {one.id for one in names if not first <= one.lineno <= last}


def _lines(node: Any) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _kept(root: Root) -> Root:
    return Root.FIXED if root is Root.FRESH else root


def _of_one_step(element: Value) -> Value:
    """Return the element of a loop within one step or pass, without sources of its count: it is redone as a whole."""
    items = None if element.shape is None else element.shape.items
    if items is not None and element.shape is not None:
        element = element._replace(shape=element.shape._replace(items=tuple(map(_of_one_step, items))))
    taints = frozenset(one for one in element.taints if one.name not in UNNAMED)
    return element._replace(taints=taints) if len(taints) < len(element.taints) else element


def _all_of(envs: list[Env]) -> Env | None:
    whole: Env | None = None
    for one in envs:
        whole = join(whole, one)
    return whole


def _grows(head: Env, back: Env, live: frozenset[str]) -> bool:
    """Return whether another turn may be read differently."""
    for name in live & back.names.keys():
        value, known = back.names[name], head.names.get(name)
        if known is None or value is known:
            if known is None:
                return True
            continue
        if value.taints - known.taints or max(value.root, known.root) is not known.root:
            return True
    return False
