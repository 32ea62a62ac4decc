"""Refuse reads of the process environment outside `taskd/config`.

Rules:

1. Settings are read once, in `taskd/config`. Elsewhere `os.environ`, `os.environb`, `os.getenv`, `os.getenvb` and their
   imported names are refused. They would be a second place that decides the meaning of a setting.
2. Writes are allowed: `os.environ[...] = x`, `del os.environ[...]`, `os.environ.update(...)` and `.clear()`.
3. A line may use the environment as a whole, for example to pass it to a child. It must end in `# environ: REASON`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "taskd" / "config"
READERS = {"environ", "environb", "getenv", "getenvb"}
WRITING_METHODS = {"clear", "update"}
EXCUSE = re.compile(r"# environ: \S")


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each read of the environment in one module."""
    written = {id(node) for node in _written(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in READERS and id(node) not in written:
                yield node.lineno, f"os.{name}"
            case ast.ImportFrom(module="os", names=names):
                yield from ((node.lineno, f"from os import {alias.name}") for alias in names if alias.name in READERS)


def _written(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the `os.environ` node of each statement that only writes to it."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=environ, ctx=ast.Store() | ast.Del()):
                yield environ
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=environ, attr=method))) if method in WRITING_METHODS:
                yield environ


def main() -> int:
    """Print every refused line; return 1 if there is one, else 0."""
    refused = 0
    for path in sorted((ROOT / "taskd").rglob("*.py")):
        if CONFIG in path.parents:
            continue
        source = path.read_text()
        lines = source.splitlines()
        for number, name in reads(ast.parse(source, str(path))):
            if not EXCUSE.search(lines[number - 1]):
                refused += 1
                print(f"{path.relative_to(ROOT)}:{number}: {name} outside taskd/config; take it from a config object")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
