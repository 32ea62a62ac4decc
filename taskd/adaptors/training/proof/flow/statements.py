"""Statements of the script: how values pass from one to the next. Loops have rules of their own (`loops.py`)."""

import ast
import sys
from collections.abc import Callable
from typing import Any, Final

from taskd.adaptors.training.proof.flow.loops import UNNAMED, Loops
from taskd.adaptors.training.proof.flow.scope import Loop, inside, names_in
from taskd.adaptors.training.proof.flow.values import (
    MISSING,
    PLAIN,
    VARYING,
    Env,
    Root,
    Taint,
    TaintKind,
    Value,
    combine,
    join,
)

_ALL: Final = ("BaseException",)
_COLLECTIVES: Final = (*_ALL, "Exception", "RuntimeError", "DistError", "DistBackendError")
"""Classes that catch the error of an interrupted collective."""
_TWICE: Final = frozenset(
    {
        *(
            "print",
            "debug",
            "info",
            "warning",
            "error",
            "exception",
            "log",
            "format",
            "len",
            "str",
            "time",
            "perf_counter",
        ),
        *("close", "flush", "stop", "step", "update", "train", "eval", "enable", "disable", "collect", "empty_cache"),
    }
)
"""Names of functions that a `finally` block may call twice: they log, close, or set a mode."""


class Statements(Loops):
    """Reader of statements."""

    def run_block(self, block: list[ast.stmt]) -> None:
        """Read statements, one after the other, until a path ends."""
        for one in block:
            if self.frame.env is None:
                return
            self.count_node()
            known = _KINDS.get(type(one))
            if known is not None:
                known(self, one)

    # Names.

    def bind(self, target: Any, value: Value) -> None:
        """Give a value to a name, or to any other target."""
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            items = None if value.shape is None else value.shape.items
            fits = items is not None and len(items) == len(target.elts)
            each = self.element(value) if not fits else PLAIN
            for number, one in enumerate(target.elts):
                self.bind(one, items[number] if fits and items is not None else each)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self._bind_part(target, value)

    def _bind_name(self, name: str, value: Value) -> None:
        frame = self.frame
        if name in frame.outside:
            return
        if name in frame.around and frame.outer is not None:
            frame = frame.outer
        env = frame.env
        if env is None:
            return
        if self.control:
            value = value._replace(taints=value.taints | self.control)
        if value.head and value.head != name:
            value = value._replace(head="", root=max(value.root, Root.VARIES))
        elif self.anchored and value.root is Root.FIXED:
            value = value._replace(root=Root.STEP)
        env.names[name] = _named(value, name)
        if env.committed == 2:
            env.late |= {name}
        if env.committed:
            for loop in frame.loops:
                loop.late.add(name)

    def _bind_part(self, target: Any, value: Value) -> None:
        owner = self.read(target.value)
        if owner.part or owner.obj is self.state:
            self.effect(target, value.taints)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            env = self.frame.env
            if env is not None and target.value.id in env.names:
                self._bind_name(target.value.id, combine([owner, value, VARYING]))

    def _assign(self, node: ast.Assign) -> None:
        value = self.read(node.value)
        for target in node.targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and _is_within(target, node.value):
                self._changes_from_itself(target, node)
            self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.read(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        known = self.read(_loaded(node.target))
        value = self.read(node.value)
        if isinstance(node.target, ast.Name):
            self.bind(node.target, combine([known, value]))
        else:
            self._changes_from_itself(node.target, node)
            self._bind_part(node.target, combine([known, value]))

    def _changes_from_itself(self, target: ast.Attribute | ast.Subscript, node: ast.stmt) -> None:
        """Find a part, or an object of the data, that is changed from itself once an epoch.

        A recovery that begins within the epoch changes it again.
        """
        steps = any(loop.commits and not loop.nested for frame in self.frames for loop in frame.loops)
        begins = all(frame.env is None or not frame.env.committed for frame in self.frames)
        if not begins or steps or not self.in_epochs():
            return
        owner = self.read(target.value)
        if owner.part or id(owner.obj) in self.data_ids:
            self.find(Taint(TaintKind.AGAIN, ast.unparse(target), self.frame.place(node)), node)

    def _delete(self, node: ast.Delete) -> None:
        env = self.frame.env
        for target in node.targets:
            if isinstance(target, ast.Name) and env is not None:
                found = env.names.pop(target.id, None)
                if found is not None and found.behind is not None:
                    self.find(found.behind, node)

    def _define(self, node: ast.FunctionDef) -> None:
        self._bind_name(node.name, self.closure(node))

    def _import(self, node: ast.Import) -> None:
        for one in node.names:
            name = one.asname or one.name.partition(".")[0]
            self._bind_name(name, self.of_object(sys.modules.get(one.name if one.asname else name, MISSING)))

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = sys.modules.get(node.module or "")
        for one in node.names:
            self._bind_name(
                one.asname or one.name, self.of_object(vars(module).get(one.name, MISSING) if module else MISSING)
            )

    def _expression(self, node: ast.Expr) -> None:
        self.read(node.value)

    # Branches.

    def _if(self, node: ast.If) -> None:
        test = self.read(node.test)
        frame, before = self.frame, self.frame.env
        assert before is not None
        if _goes_on(node.body) and not before.committed and self._has_step(node.test):
            self.skips |= names_in(node.test)
        with self.under(test, names_in(node.test)):
            frame.env = before.copy()
            self.run_block(node.body)
            after, frame.env = frame.env, before
            self.run_block(node.orelse)
        frame.env = join(after, frame.env)

    def _has_step(self, test: ast.expr) -> bool:
        """Return whether any value in it is made from the state's step."""
        places = (one for one in ast.walk(test) if isinstance(one, ast.Name | ast.Attribute))
        return any(self.read(one).root is Root.STEP for one in places)

    def _try(self, node: Any) -> None:
        frame = self.frame
        assert frame.env is not None
        before = frame.env.copy()
        self.run_block(node.body)
        broken: Env | None = join(before, frame.env)
        if frame.env is not None:
            self.run_block(node.orelse)
        after: Env | None = frame.env
        cleans_up = next(filter(_cleans_up, node.finalbody), None)
        if cleans_up is not None and self.commits(node):
            self.find(Taint(TaintKind.CLEANS_UP, "finally", frame.place(cleans_up)), cleans_up)
        for handler in node.handlers:
            if _ends_the_training(handler) and self.commits(node):
                if _catches(handler, _COLLECTIVES):
                    self.find(Taint(TaintKind.HANDLES, "except", frame.place(handler)), handler)
                if _catches(handler, _ALL):
                    self.find(Taint(TaintKind.CLEANS_UP, "except", frame.place(handler)), handler)
            frame.env = None if broken is None else broken.copy()
            if handler.name:
                self._bind_name(handler.name, PLAIN)
            self.run_block(handler.body)
            after = join(after, frame.env)
        frame.env = after
        if frame.env is not None:
            self.run_block(node.finalbody)

    def _with(self, node: ast.With) -> None:
        frame = self.frame
        graded = frame.graded
        for item in node.items:
            value = self.read(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
            called = getattr(item.context_expr, "func", item.context_expr)
            if getattr(called, "attr", getattr(called, "id", "")) in ("no_grad", "inference_mode"):
                frame.graded = False
        self.run_block(node.body)
        frame.graded = graded

    def _match(self, node: ast.Match) -> None:
        test = self.read(node.subject)
        frame, before = self.frame, self.frame.env
        after: Env | None = before
        for case in node.cases:
            with self.under(test):
                frame.env = None if before is None else before.copy()
                for one in inside(case.pattern):
                    if name := getattr(one, "name", None):
                        self._bind_name(name, test)
                self.run_block(case.body)
                after = join(after, frame.env)
        frame.env = after

    # Ends of paths.

    def _return(self, node: ast.Return) -> None:
        value = self.read(node.value)
        if self.control:
            value = value._replace(taints=value.taints | self.control)
        if self.frame is self.frames[0]:
            self._hands_on(node)
            for source in value.taints:
                if source.kind is TaintKind.CARRIED:
                    self.find(source._replace(kind=TaintKind.RETURNED), node)
        self.frame.returned.append(value)
        if any(loop.commits for loop in self.frame.loops):
            self._ends(node, self.frame.loops)
        self._leaves(node)
        self.frame.env = None

    def _hands_on(self, node: ast.Return) -> None:
        """Find weights that the training function returns: the script goes on with them, not with other results."""
        left = [node.value]
        while left:
            one = left.pop()
            if isinstance(one, ast.Tuple | ast.List):
                left += one.elts
            elif isinstance(one, ast.Dict):
                left += one.values
            elif one is not None and (value := self.read(one)).part:
                self.effect(node, value.taints)

    def _break(self, node: ast.Break) -> None:
        loop = self.frame.loops[-1]
        if loop.commits:
            self._ends(node, self.frame.loops)
        self._leaves(node)
        if self.frame.env is not None:
            loop.breaks.append(self.frame.env)
        self.frame.env = None

    def _continue(self, node: ast.Continue) -> None:
        loop = self.frame.loops[-1]
        if loop.commits:
            self._ends(node, [loop])
        self._asks(self.anchored)
        if self.frame.env is not None:
            loop.continues.append(self.frame.env)
        self.frame.env = None

    def _ends(self, node: ast.stmt, loops: list[Loop]) -> None:
        self.effect(node)
        if self.anchored:
            for loop in loops:
                loop.bounded = True

    def _leaves(self, node: ast.stmt) -> None:
        """Find a loop that is left behind a commit: a recovery at that very commit enters it once more."""
        self._asks(self.anchored)
        env, loop = self.frame.env, self.frame.loops[-1] if self.frame.loops else None
        if env is not None and env.committed and not self.timed and loop and loop.commits and not loop.nested:
            name = type(node).__name__.lower()
            self.find(Taint(TaintKind.LEAVES, name, self.frame.place(node)), node)

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.read(node.exc)
        self.frame.env = None


def _named(value: Value, name: str) -> Value:
    """Return a value whose unnamed sources, as of `enumerate`, have the name that the count has in the script."""
    found = [one for one in value.taints if one.name in UNNAMED]
    if not found:
        return value
    others = value.taints.difference(found)
    return value._replace(taints=others | {one._replace(name=name) for one in found})


def _catches(handler: ast.ExceptHandler, names: tuple[str, ...]) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "attr", getattr(kind, "id", "")) in names for kind in kinds)


def _cleans_up(statement: ast.stmt) -> bool:
    """Return whether a statement of a `finally` block calls a function that may not be called twice."""
    calls = [one.func for one in inside(statement) if isinstance(one, ast.Call)]
    names = [getattr(one, "attr", getattr(one, "id", "")) for one in calls]
    return any(name not in _TWICE and not name.startswith("set_") for name in names)


def _ends_the_training(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler acts as for the last time: it calls functions, and raises or returns."""
    calls = any(isinstance(one, ast.Call) for statement in handler.body for one in inside(statement))
    return calls and isinstance(handler.body[-1], ast.Raise | ast.Return)


def _goes_on(block: list[ast.stmt]) -> bool:
    return isinstance(block[-1], ast.Continue)


def _is_within(target: ast.expr, value: ast.AST) -> bool:
    """Return whether a place is read in an expression, other than for its length."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "len":
        return False
    if isinstance(value, type(target)) and ast.unparse(value) == ast.unparse(target):
        return True
    return any(_is_within(target, one) for one in ast.iter_child_nodes(value))


def _loaded(target: Any) -> Any:
    """Return a target as an expression that is read."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


_KINDS: Final[dict[type, Callable[[Any, Any], None]]] = {
    ast.Expr: Statements._expression,
    ast.Assign: Statements._assign,
    ast.AnnAssign: Statements._annotated,
    ast.AugAssign: Statements._augmented,
    ast.Delete: Statements._delete,
    ast.FunctionDef: Statements._define,
    ast.Import: Statements._import,
    ast.ImportFrom: Statements._import_from,
    ast.If: Statements._if,
    ast.Try: Statements._try,
    ast.With: Statements._with,
    ast.Match: Statements._match,
    ast.Return: Statements._return,
    ast.Break: Statements._break,
    ast.Continue: Statements._continue,
    ast.Raise: Statements._raise,
    ast.For: Statements.for_loop,
    ast.While: Statements.while_loop,
}
