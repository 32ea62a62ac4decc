"""The sources of a torch that is not installed: the objects of its modules, by their syntax alone.

It answers as `taskd.adaptors.seams.seam.installed` does. Compiled names come from torch's stubs. Their parameters are
unreliable, so they count as accepting anything.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from taskd.adaptors.seams.seam import TorchName

Read = Callable[[str], "str | None"]
"""Text of a file of the package ("torch/nn/__init__.py"), None if there is none."""
_COMPILED = "torch._C"
_DEEPEST = 12
Node = tuple[str, Any]
"""A module, and the object in it."""


class Sources:
    """Finds names in the sources that `read` gives."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._trees: dict[str, tuple[ast.Module | None, bool]] = {}

    def look(self, module: str, attribute: str) -> TorchName | str:
        """Return the object of a module under a dotted name, or why there is none."""
        tree, _ = self._tree(module)
        if tree is None:
            return f"no module {module}"
        if not attribute:
            return TorchName(has=tuple(sorted(self._names(module))))
        node = self._find(module, attribute.split("."), 0)
        return f"no {attribute}" if node is None else self._describe(node)

    def _describe(self, node: Node) -> TorchName:
        module, found = node
        compiled = module.startswith(_COMPILED)
        if isinstance(found, ast.FunctionDef):
            return TorchName(takes=("**",) if compiled else _parameters(found))
        if not isinstance(found, ast.ClassDef):
            return TorchName(takes=("**",) if compiled else ())
        fields = tuple(_fields(found))
        made = self._member(module, found, ["__init__"], 0)
        takes: tuple[str, ...] = fields
        sets: set[str] = set(fields)
        if made is not None and isinstance(made[1], ast.FunctionDef):
            takes = _parameters(made[1])[1:]
            sets |= {part.attr for part in ast.walk(made[1]) if isinstance(part, ast.Attribute)}
            sets |= {part.id for part in ast.walk(made[1]) if isinstance(part, ast.Name)}
            sets |= {str(part.value) for part in ast.walk(made[1]) if isinstance(part, ast.Constant)}
        if compiled:
            takes = ("**",)
        own = {name for statement in _statements(found.body) for name in _defined(statement)}
        has = {name for name in self._members(module, found, 0) if name != "__init__" or name in own}
        return TorchName(takes, tuple(sorted(sets)), tuple(sorted(has)))

    def _tree(self, module: str) -> tuple[ast.Module | None, bool]:
        if module not in self._trees:
            path = module.replace(".", "/")
            for name, package in ((f"{path}.py", False), (f"{path}/__init__.py", True), (f"{path}.pyi", False)):
                text = self._read(name)
                if text is not None:
                    self._trees[module] = ast.parse(text), package
                    break
            else:
                self._trees[module] = None, False
        return self._trees[module]

    def _find(self, module: str, path: Sequence[str], depth: int) -> Node | None:
        tree, _ = self._tree(module)
        if tree is None or depth > _DEEPEST:
            return None
        head, *rest = path
        for statement in _statements(tree.body):
            if isinstance(statement, ast.ClassDef) and statement.name == head and rest:
                return self._member(module, statement, rest, depth)
            if head in _defined(statement) and not rest:
                return module, statement
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == head:
                        found = self._find(self._imported(module, statement), [alias.name, *rest], depth + 1)
                        if found is not None:
                            return found
        return None

    def _imported(self, module: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        _, package = self._tree(module)
        parents = module.split(".")
        kept = parents[: len(parents) - statement.level + package]
        return ".".join([*kept, *([statement.module] if statement.module else [])])

    def _member(self, module: str, kind: ast.ClassDef, path: Sequence[str], depth: int) -> Node | None:
        head, *rest = path
        for statement in _statements(kind.body):
            if isinstance(statement, ast.ClassDef) and statement.name == head and rest:
                return self._member(module, statement, rest, depth)
            if head in _defined(statement):
                return module, statement
        for base in self._bases(module, kind, depth):
            found = self._member(*base, path, depth + 1)
            if found is not None:
                return found
        return None

    def _bases(self, module: str, kind: ast.ClassDef, depth: int) -> Iterator[tuple[str, ast.ClassDef]]:
        for base in kind.bases:
            found = self._find(module, ast.unparse(base).partition("[")[0].split("."), depth + 1)
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield found

    def _members(self, module: str, kind: ast.ClassDef, depth: int) -> set[str]:
        own = {name for statement in _statements(kind.body) for name in _defined(statement)}
        for base in self._bases(module, kind, depth):
            own |= self._members(*base, depth + 1)
        return own

    def _names(self, module: str) -> set[str]:
        tree, _ = self._tree(module)
        assert tree is not None
        return {name for statement in _statements(tree.body) for name in _defined(statement)}


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, including those under a condition."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _fields(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the fields that a data class or a named tuple declares."""
    for statement in kind.body:
        declares = isinstance(statement, ast.AnnAssign) and "init=False" not in ast.unparse(statement)
        if declares:
            yield from _defined(statement)


def _parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    names += [given.vararg.arg] if given.vararg else []
    names += [one.arg for one in given.kwonlyargs]
    names += ["**"] if given.kwarg else []
    return tuple(names)
