"""Work of an interrupted step that the script had still to do, up to the commit: read from its text.

Rules:

1. It is read at a fault, and only for a step whose optimizers have stepped: a step pays nothing.
2. The rest is the code behind the interrupted line in each function of the script, from the innermost outwards, up to a
   statement that surely commits. If a loop lies between, all of its body may come again.
3. The effect of a call is derived from the value of its name in the interrupted frames. A library does not move a part
   of the state that it is not given; a function of the script may do anything.
4. Code that cannot be read or resolved may do anything. Nothing of the script is run to find out.
"""

import ast
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_tb
from types import FrameType, FunctionType
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.adaptors.groups.sites import is_between, is_users
from taskd.adaptors.training.script.script_text import (
    HARMLESS,
    LOOPS,
    ScriptLine,
    blocks_to,
    calls,
    function_of,
    name,
    works,
)

_log = logging.getLogger(__name__)
_READS: Final = HARMLESS - {"step", "update"} | {"clone", "float", "numpy", "barrier"}
"""Names of methods that move nothing, whatever they belong to."""
_MOVES: Final = (torch.optim.Optimizer, LRScheduler, torch.nn.Module)
"""Types that may hold a part of the state."""
_PLAIN: Final = (int, float, str, bytes, bool)
_UNKNOWN: Final = object()


class Rest:
    """Rest of one interrupted step.

    Args:
        error: error by which the training function was left; None if that is not known.
        commit: the method that commits; None if nothing is known.

    Attributes:
        line: `file:line` of the first work in it that is worth reporting; "" for none.
    """

    def __init__(self, error: BaseException | None = None, commit: Callable[..., None] | None = None) -> None:
        self.line = ""
        self._commit = commit
        self._anything = self._stores = False
        self._given: set[int] = set()
        try:
            if not self._read(_frames(error)):
                self._anything = True
        except Exception:  # noqa: BLE001 - any access to an object of the script may raise
            _log.debug("what was left of the interrupted step cannot be read", exc_info=True)
            self._anything = True

    def may_move(self, part: Any) -> bool:
        """Return whether a part of the state might have been moved in the rest."""
        follows = not isinstance(part, LRScheduler)
        return self._anything or self.is_given(part) or (follows and self._stores)

    def is_given(self, part: Any) -> bool:
        """Return whether the rest calls a method of the part, or passes the part to a call."""
        return id(part) in self._given

    def _read(self, frames: Sequence[tuple[FrameType, int] | None]) -> bool:
        """Read the frames, innermost first. Return whether the commit was found."""
        inner: FrameType | None = None
        for found in frames:
            if found is None:
                return False
            frame, line = found
            code = frame.f_code
            function = function_of(ScriptLine(code.co_filename, line, code.co_firstlineno))
            if function is None:
                return False
            names = _Names(frame, function)
            for number, statement in enumerate(_remaining(function, line)):
                if self._commits(statement, names):
                    return True
                under_way = number == 0
                self._look(statement, names, inner if under_way else None)
                if not under_way and not self.line and works(statement):
                    self.line = f"{code.co_filename}:{statement.lineno}"
            inner = frame
        return False

    def _commits(self, statement: ast.stmt, names: "_Names") -> bool:
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        owner, called = names.callee(statement.value)
        mine = getattr(self._commit, "__self__", None)
        return owner is mine and called is getattr(self._commit, "__func__", None)

    def _look(self, statement: ast.stmt, names: "_Names", inner: FrameType | None) -> None:
        for call in calls(statement):
            owner, called = names.callee(call)
            if inner is not None and getattr(called, "__code__", None) is inner.f_code:
                continue  # it is under way, and its rest has been read
            self._given.add(id(owner))
            self._given.update(id(names.value(argument)) for argument in _arguments(call))
            if _may_do_anything(name(call), owner, called):
                self._anything = True
        self._stores = self._stores or any(names.writes(node) for node in ast.walk(statement))


class _Names:
    """Values of a function's names where its frame was interrupted."""

    def __init__(self, frame: FrameType, function: ast.AST) -> None:
        self._spaces = (frame.f_locals, frame.f_globals, vars(sys.modules["builtins"]))
        self._changing = {
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def value(self, node: ast.expr, *, even_changing: bool = False) -> Any:
        """Return the value of an expression; `_UNKNOWN` if it cannot be found without running code."""
        if isinstance(node, ast.Name):
            if node.id in self._changing and not even_changing:
                return _UNKNOWN
            return next((space[node.id] for space in self._spaces if node.id in space), _UNKNOWN)
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)[1]
        return _UNKNOWN

    def callee(self, call: ast.Call) -> tuple[Any, Any]:
        """Return the owner of the called method, and the function. A plain function has the owner `_UNKNOWN`."""
        if isinstance(call.func, ast.Attribute):
            owner = self.value(call.func.value)
            return _attribute(owner, call.func.attr)
        return _UNKNOWN, self.value(call.func)

    def writes(self, node: ast.AST) -> bool:
        """Return whether the node changes in place an object that it does not make."""
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return not isinstance(self.value(node.target, even_changing=True), _PLAIN)
        return isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)


def _frames(error: BaseException | None) -> list[tuple[FrameType, int] | None]:
    """Return the script's frames with their lines, innermost first; None for a library that may call the script."""
    if error is None:
        return []
    found: list[tuple[FrameType, int] | None] = []
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_users(file):
            found.append((frame, line))
        elif found and not is_between(file):
            found.append(None)
    while found and found[-1] is None:  # a library that the script has called, and that calls none of its code
        found.pop()
    return found[::-1]


def _remaining(function: ast.AST, line: int) -> Iterator[ast.stmt]:
    """Yield the statement at the line, and those that may follow it in the function."""
    blocks = list(blocks_to(function, line))
    if not blocks:
        return
    block, at, _ = blocks[0]
    yield block[at]
    for block, at, parent in blocks:
        yield from block[at + 1 :]
        if isinstance(parent, ast.Try):
            if isinstance(block[at], ast.ExceptHandler):
                yield from parent.body  # the statement that raised is not known
            yield from parent.orelse
            yield from parent.finalbody
        if isinstance(parent, LOOPS):
            yield from parent.body
            yield from parent.orelse


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)


def _attribute(owner: Any, attribute: str) -> tuple[Any, Any]:
    """Return the owner of an attribute and its value, without running a property."""
    if owner is _UNKNOWN:
        return _UNKNOWN, _UNKNOWN
    try:
        found = inspect.getattr_static(owner, attribute)
    except AttributeError:
        return owner, _UNKNOWN
    if isinstance(found, property):
        return owner, _UNKNOWN
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return owner, getattr(found, "__func__", found)


def _may_do_anything(called_by: str, owner: Any, called: Any) -> bool:
    if called_by.endswith("_") and not called_by.startswith("_"):
        return True  # torch's names of methods that work in place
    if called is _UNKNOWN:
        return called_by not in _READS
    if isinstance(owner, _MOVES):
        return called_by not in _READS and not _moves_itself_alone(owner)
    return isinstance(called, _MOVES) or is_users(_file_of(called))


def _moves_itself_alone(owner: Any) -> bool:
    return type(owner).__module__ == LRScheduler.__module__ and "_schedulers" not in vars(owner)


def _file_of(called: Any) -> str:
    """Return the file that defines a function, or an instance's class; "<" if it is not written in Python."""
    if isinstance(called, FunctionType):
        return str(inspect.unwrap(called).__code__.co_filename)
    kind = called if isinstance(called, type) else type(called)
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<")
