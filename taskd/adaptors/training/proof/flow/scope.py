"""Functions and loops that are being read, and the values of names in them.

Rules:

1. Objects of the script are read through their `__dict__` alone: no property and no function of theirs is called.
2. A function is the script's if its file is. The effect of a library's function is known by its name alone.
"""

import ast
import builtins
import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import torch

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.proof.flow.values import MISSING, Env, Value
from taskd.adaptors.training.script.script_text import FUNCTIONS, ScriptLine, function_of

_TABLES: Final = ("_modules", "_parameters", "_buffers")
MUTATING: Final = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "remove", "clear", "setdefault"}
)
"""Methods that change a container."""


class Closure(NamedTuple):
    """Function that is defined inside of one that is read."""

    node: ast.AST
    frame: "Scope"


class Code(NamedTuple):
    """Function of the script whose text was found. `own`: the object that its first parameter is bound to."""

    node: ast.AST
    function: FunctionType | None
    frame: "Scope | None"
    own: Any = MISSING


class Loop:
    """Loop that is being read.

    Attributes:
        commits: whether steps are committed in it.
        inner: inner loops in which they are committed.
        nested: whether there is such an inner loop, here or in a function that is called.
        assigned: names that it sets, with the line of the last place.
        first: values of names before the loop.
        bounded: whether the state's own step ends it.
        epochs: whether it iterates over `state.epochs()`.
        late: names that it sets behind a commit, or perhaps behind one.
        ends: whether it ends as its loader does.
    """

    def __init__(
        self, node: Any, *, commits: bool, nested: bool, inner: tuple[Any, ...], first: Mapping[str, Value]
    ) -> None:
        self.node, self.commits, self.nested, self.inner, self.first = node, commits, nested, inner, first
        self.assigned = assigned(node)
        self.bounded = self.epochs = self.ends = False
        self.late: set[str] = set()
        self.breaks: list[Env] = []
        self.continues: list[Env] = []

    def carried(self) -> dict[str, int]:
        """Return the names that a nested loop sets last itself, with their lines. Its inner loop sets the others."""
        last = max((one.end_lineno for one in self.inner), default=0)
        inner = {name for one in self.inner for name in assigned(one)}
        own = assigned(self.node, self.inner)
        return {name: line for name, line in own.items() if name not in inner or line > last}


class Scope:
    """Function that is being read.

    Attributes:
        env: present values of its names; None where its path has ended.
        outer: the function that it is defined in, if that is being read.
        own: the object that its first parameter is bound to.
        functions: functions that are defined in it.
        graded: whether gradients are computed in it.
        yields: whether the step is committed while it waits at a yield.
        returned: values that it returns.
        given: values that it yields.
        passes: loader that it iterates over, if it is a generator.
    """

    def __init__(self, code: Code, file: str, *, graded: bool) -> None:
        self.node: Any = code.node
        self.function, self.outer, self.own, self.file = code.function, code.frame, code.own, file
        self.env: Env | None = Env({})
        self.loops: list[Loop] = []
        self.graded = graded
        self.yields = False
        self.returned: list[Value] = []
        self.given: list[Value] = []
        self.passes = ""
        self.assigned = {} if isinstance(self.node, ast.Lambda) else assigned(self.node)
        self.functions = [one for one in inside(self.node) if type(one) is ast.FunctionDef and one is not self.node]
        self.outside = _declared(self.node, ast.Global)
        self.around = _declared(self.node, ast.Nonlocal)

    def place(self, node: Any) -> str:
        """Return `file:line` of a node."""
        return f"{self.file}:{node.lineno}"

    def known(self, name: str) -> Any:
        """Return the object that a name stands for which is not set here; MISSING if it is not known."""
        frame: Scope = self
        while frame.function is None and frame.outer is not None:
            frame = frame.outer
        function: Any = frame.function
        if function is None:
            return MISSING
        names = function.__code__.co_freevars
        if name in names and function.__closure__ is not None:
            try:
                return function.__closure__[names.index(name)].cell_contents
            except ValueError:  # the cell is still empty
                return MISSING
        return function.__globals__.get(name, vars(builtins).get(name, MISSING))


def plain_function(function: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return a function without its wrappers: itself, the object that it is bound to, and the arguments of partials."""
    given: tuple[Any, ...] = ()
    while isinstance(function, functools.partial):
        given, function = (*function.args, *given), function.func
    own = getattr(function, "__self__", MISSING) if isinstance(function, MethodType) else MISSING
    function = inspect.unwrap(getattr(function, "__func__", function))
    return function, own, given


def code_of(called: Any) -> Code | None:
    """Return the text of a function of the script; None if it is no such function, or has no text."""
    if isinstance(called, Closure):
        return Code(called.node, None, called.frame)
    function, own, given = plain_function(called)
    if given or not isinstance(function, FunctionType) or not is_users(function.__code__.co_filename):
        return None
    node = function_of(ScriptLine(function.__code__.co_filename, 0, function.__code__.co_firstlineno))
    return None if node is None or not _is_of(node, function) else Code(node, function, None, own)


def _is_of(node: ast.AST, function: FunctionType) -> bool:
    """Return whether the text is that of the function: its file may have been rewritten since it was imported."""
    return getattr(node, "name", "<lambda>") == function.__code__.co_name


def member(obj: Any, name: str) -> Any:
    """Return an attribute of an object, found without calling any of its code; MISSING if it is not found so."""
    if obj is MISSING or isinstance(obj, Closure):
        return MISSING
    try:
        own = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        own = {}
    if isinstance(obj, torch.nn.Module):
        for table in _TABLES:
            if name in own.get(table, ()):
                return own[table][name]
    if name in own:
        return _static(own[name])
    if isinstance(obj, ModuleType):
        return MISSING
    for kind in obj.__mro__ if isinstance(obj, type) else type(obj).__mro__:
        found = kind.__dict__.get(name, MISSING)
        if found is not MISSING:
            return _bound(found, obj)
    return MISSING


def _static(found: Any) -> Any:
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def _bound(found: Any, obj: Any) -> Any:
    if isinstance(found, FunctionType):
        return found if isinstance(obj, type) else MethodType(found, obj)
    found = _static(found)
    return found if isinstance(found, int | float | str | bool | FunctionType | type(None)) else MISSING


@functools.cache
def assigned(node: ast.AST, without: tuple[ast.AST, ...] = ()) -> dict[str, int]:
    """Return the names that are set or changed in a loop or a function, with the line of the last place."""
    found: dict[str, int] = {}
    for one in inside(node, without):
        kind = type(one)
        if kind is ast.Name or kind in _SETTING:
            name = _set_by(one) if one is not node else ""
            if name:
                found[name] = max(getattr(one, "lineno", 0), found.get(name, 0))
    return found


def _set_by(node: Any) -> str:
    """Return the name that is set, or whose content is changed, at this node; "" for none."""
    match node:
        case ast.Name(id=name):
            return "" if isinstance(node.ctx, ast.Load) else name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            return name if method in MUTATING or changes_itself(method) else ""
        case ast.Subscript(value=ast.Name(id=name)):
            return name if isinstance(node.ctx, ast.Store) else ""
        case ast.ExceptHandler() | ast.FunctionDef() | ast.ClassDef():
            return node.name or ""
    return ""


def live_at_head(loop: Any) -> frozenset[str]:
    """Return the names that a turn of a loop may read before it sets them: their values come from the turn before."""
    tests = names_in(loop.test) if isinstance(loop, ast.While) else frozenset()
    return tests | _live(loop.body, _targets(loop))


def _live(block: list[Any], before: frozenset[str]) -> frozenset[str]:
    """Return the names that a block may read before it sets them; `before` are set already."""
    live: frozenset[str] = frozenset()
    for one in block:
        blocks = [body for field in ("body", "orelse", "finalbody") if (body := getattr(one, field, None))]
        if isinstance(one, ast.FunctionDef | ast.ClassDef) or not blocks:
            live |= _read_by(one) - before
            before |= _targets(one)
            continue
        heads = [getattr(one, field, None) for field in ("test", "iter", "items", "subject")]
        own = [part for head in heads for part in (head if isinstance(head, list) else [head]) if part is not None]
        handlers = [handler.body for handler in getattr(one, "handlers", [])]
        live |= frozenset[str]().union(*map(names_in, own)) - before
        for body in [*blocks, *handlers]:
            live |= _live(body, before | _targets(one))
    return live


def _read_by(statement: Any) -> frozenset[str]:
    again = statement.target if isinstance(statement, ast.AugAssign) else None
    added = frozenset({again.id}) if isinstance(again, ast.Name) else frozenset()
    return (
        names_in(statement)
        | added
        | frozenset().union(
            *(names_in(one) for one in inside(statement) if isinstance(one, FUNCTIONS) and one is not statement)
        )
    )


def _targets(node: Any) -> frozenset[str]:
    """Return the names that a statement surely sets, before its body if it has one."""
    found = [*getattr(node, "targets", [])] if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [one for target in found if target is not None for one in inside(target) if isinstance(one, ast.Name)]
    return frozenset(one.id for one in names if isinstance(one.ctx, ast.Store))


def changes_itself(method: str) -> bool:
    """Return whether a method of that name changes its owner, as `mul_` does."""
    return method.endswith("_") and not method.endswith("__")


_SETTING: Final = frozenset({ast.Call, ast.Subscript, ast.ExceptHandler, ast.FunctionDef, ast.ClassDef})
_LEAVES: Final = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_PLAIN: Final = {str, int, float, bool, bytes, complex, type(None), type(...), ast.Load, ast.Store, ast.Del}
_spans: Final[dict[int, tuple[list[ast.AST], int, int]]] = {}
"""For each node, by its id: the nodes of its function, and which of them are its own."""


def inside(node: ast.AST, without: tuple[ast.AST, ...] = ()) -> list[ast.AST]:
    """Return all nodes in it, without those of functions and classes that are defined there, and `without` these."""
    if id(node) not in _spans or (isinstance(node, (*FUNCTIONS, ast.ClassDef)) and _spans[id(node)][1] != 0):
        _index(node, node, [])
    order, start, end = _spans[id(node)]
    found: list[ast.AST] = []
    for other in without:
        _, from_, to = _spans[id(other)]
        found += order[start:from_]
        start = max(start, to)
    return found + order[start:end]


def _index(node: ast.AST, root: ast.AST, order: list[ast.AST]) -> None:
    start = len(order)
    order.append(node)
    if node is root or not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        for value in vars(node).values():
            for one in value if type(value) is list else (value,):
                if type(one) not in _PLAIN and not isinstance(one, _LEAVES):
                    _index(one, root, order)
    _spans[id(node)] = order, start, len(order)


def forget_text() -> None:
    """Release everything that was read."""
    _spans.clear()
    assigned.cache_clear()
    names_in.cache_clear()


def _declared(node: ast.AST, kind: Callable[..., Any]) -> frozenset[str]:
    return frozenset(name for one in inside(node) if type(one) is kind for name in getattr(one, "names", ()))


@functools.cache
def names_in(node: ast.AST) -> frozenset[str]:
    """Return the names that are read in it, functions within included."""
    nodes = ast.walk(node) if isinstance(node, FUNCTIONS) else inside(node)
    return frozenset(one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
