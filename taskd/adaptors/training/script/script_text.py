"""The script's text, as far as what it does at a line, and after it, can be read there."""

import ast
import builtins
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

HARMLESS: Final = frozenset(dir(builtins)) - {"open", "exec", "eval", "compile", "__import__"} | {
    *("debug", "info", "warning", "error", "write", "flush", "format", "set_postfix", "set_description"),
    *("append", "update", "item", "tolist", "detach", "cpu", "mean", "time", "perf_counter", "monotonic"),
    *("step", "zero_grad", "get_rank", "get_world_size", "get_last_lr"),
}
"""Calls by these names print, look, count or move on what the state has as a part."""
LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class ScriptLine(NamedTuple):
    """A line of the script that is being run: the file, the line, and the first line of its function."""

    file: str
    line: int
    function: int


def function_of(place: ScriptLine) -> ast.AST | None:
    """The function's tree; None if there is no text, or it cannot be read."""
    return _functions("".join(linecache.getlines(place.file))).get(place.function)


@lru_cache(maxsize=4)
def _functions(text: str) -> dict[int, ast.AST]:
    """The functions of a text by their first lines; of several on one line the outermost."""
    found: dict[int, ast.AST] = {}
    tree = _tree(text)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            begins = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            found.setdefault(begins, node)
    return found


def attribute_read_at(files: Iterable[str], name: str) -> str:
    """`file:line` where the first of these files reads an attribute of that name; "" where none does."""
    for file in files:
        tree = _tree("".join(linecache.getlines(file)))
        for node in () if tree is None else ast.walk(tree):
            target = node.target if isinstance(node, ast.AugAssign) else node
            reads = target is not node or isinstance(getattr(node, "ctx", None), ast.Load)
            if isinstance(target, ast.Attribute) and target.attr == name and reads:
                return f"{file}:{target.lineno}"
    return ""


@lru_cache(maxsize=4)
def _tree(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def blocks_to(function: ast.AST, line: int) -> Iterator[tuple[list[ast.stmt], int, ast.AST]]:
    """From the innermost block that holds the line outwards: the block, where in it the line is, and whose it is.

    Nothing follows in a block of exception handlers: another one is not run.
    """
    blocks: list[tuple[list[ast.stmt], int, ast.AST]] = []
    node: ast.AST | None = function
    while node is not None:
        within: ast.AST | None = None
        for field in ("body", "orelse", "finalbody", "handlers"):
            found = getattr(node, field, None)
            block: list[ast.stmt] = found if isinstance(found, list) else []  # a lambda's body is an expression
            for at, child in enumerate(block):
                if child.lineno <= line <= (child.end_lineno or child.lineno):
                    blocks.append(([child], 0, node) if field == "handlers" else (block, at, node))
                    within = child
        node = None if isinstance(within, FUNCTIONS) else within
    return reversed(blocks)


def works(statement: ast.stmt) -> bool:
    """It calls something that may be missed."""
    return any(name(call) not in HARMLESS for call in calls(statement))


def name(call: ast.Call) -> str:
    """That of what is called, without what it belongs to."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def calls(node: ast.AST) -> Iterable[ast.Call]:
    """Those that are made where the node is run: not those in functions that it defines."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from calls(child)
