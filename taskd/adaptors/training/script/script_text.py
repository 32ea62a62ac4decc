"""Reading of the script's source: the work at a line and after it, as far as the text shows it."""

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
"""Names of calls that print, inspect or count, or that advance a part of the state."""
LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class ScriptLine(NamedTuple):
    """A line of the script that is being run: the file, the line, and the first line of its function."""

    file: str
    line: int
    function: int


def function_of(place: ScriptLine) -> ast.AST | None:
    """Return the tree of a line's function; None if there is no text, or if it cannot be parsed."""
    return _functions("".join(linecache.getlines(place.file))).get(place.function)


@lru_cache(maxsize=4)
def _functions(text: str) -> dict[int, ast.AST]:
    """Return the functions of a text by their first lines; of several on one line the outermost."""
    found: dict[int, ast.AST] = {}
    tree = _tree(text)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            begins = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            found.setdefault(begins, node)
    return found


def attribute_read_at(files: Iterable[str], name: str) -> str:
    """Return `file:line` where the first of these files reads an attribute of that name; "" if none does."""
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
    """Return the blocks that hold the line, from the innermost outwards: block, index of the line in it, and owner.

    Nothing follows in a block of exception handlers: no second handler runs.
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
    """Return whether a statement makes a call whose absence matters."""
    return any(name(call) not in HARMLESS for call in calls(statement))


def name(call: ast.Call) -> str:
    """Return the name of the called function, without its owner."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def calls(node: ast.AST) -> Iterable[ast.Call]:
    """Yield the calls that are made where the node runs, without those in functions that it defines."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from calls(child)
