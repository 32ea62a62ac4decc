"""Torches that differ from the installed one in a single place of the table.

Rules:

1. A break changes all of torch's sources consistently, so that such a torch works by itself: a renamed object has its
   new name wherever torch uses it. Plain torchrun trains with it as before.
2. Compiled names are renamed when torch is imported, before any module has read them.
3. The installed torch stays as it is. Another one is a farm of links in an environment of its own, and a changed file
   there takes the place of a link.
"""

import ast
import inspect
import re
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from taskd.adaptors.seams.parts import PARTS, Part
from taskd.adaptors.seams.seam import Choice, Fit, Line, Seam, installed

LATER: Final = "_of_later"
PUBLIC: Final = frozenset(
    ("DistributedDataParallel", "DataLoader", "Module", "GradScaler", "ProcessGroup", "Reducer", "FakeProcessGroup")
)
"""Public names that are not renamed. Without the first ones, no script of today would run under plain torchrun.
Of the compiled classes, each name that taskd uses is renamed.
"""
_COMMON: Final = frozenset(("close", "fetch", "wait", "release"))
"""Names of too many objects, which are not renamed. Such a method with other parameters is played."""
_COMPILED: Final = "torch._C"
_ELASTIC: Final = "torch.distributed.elastic"
_DATA: Final = "torch.utils.data"
_TORCHRUN: Final = ("torch/distributed/elastic", "torch/distributed/launcher", "torch/distributed/run.py")
_FIRST: Final = "torch/distributed/__init__.py"
"""File that is read before anything uses the compiled names of process groups."""
_USER: Final = "torch/distributed/distributed_c10d.py"
"""File that uses the public ones."""
_OF_STORES: Final = frozenset(("set_timeout",))
"""Public names that it uses of stores alone."""
_NEAR: Final = frozenset(("run", "sync", "_close"))
"""Methods that are called in their own file alone, under a name that others have too."""
_PARAMETER_KINDS: Final = frozenset(("_P", "P"))
"""ParamSpecs, whose `args` are not an attribute of torch's."""
Places = list[tuple[int, int]]
"""Line and byte column of each identifier."""


class Way(Enum):
    """Kind of a difference."""

    RENAMED = "renamed"
    PARAMETERS = "other parameters"


@dataclass(frozen=True)
class Break:
    """One difference. `name` is the renamed object or parameter; "" for an additional parameter."""

    part: Part
    seam: Seam
    way: Way
    name: str
    has_other_way: bool = False
    """True if torch has another way of the same thing, which taskd knows, too."""

    def __str__(self) -> str:
        what = f" {self.name}" if self.name else ""
        return f"{self.part.name}: {self.seam.module}:{self.seam.attribute} {self.way.value}{what}"

    def changes(self) -> dict[str, str]:
        """Return the changed sources of torch, by their path in the package's parent."""
        if self.seam.fit is Fit.EXPORTS:
            return {}
        if self.way is Way.RENAMED:
            return _renamed(self.seam, self.name)
        return _with_parameter(self.seam) if not self.name else _with_renamed_parameter(self.seam, self.name)

    def symbols(self) -> dict[str, tuple[str, str]]:
        """Return old and new name of a symbol in torch's libraries, by their path in the package's parent."""
        if self.seam.fit is not Fit.EXPORTS:
            return {}
        return {f"torch/lib/{self.seam.module}": (self.name, self.name + LATER)}


def breaks() -> Iterator[Break]:
    """Yield every place of the table that can be changed in the installed torch."""
    for part in PARTS:
        for line in part.table:
            for seam in line.find().seams if isinstance(line, Choice) else (line,):
                yield from (replace(found, has_other_way=_has_other(line, seam)) for found in _of_seam(part, seam))


def _has_other(line: Line, broken: Seam) -> bool:
    return isinstance(line, Choice) and any(
        broken not in variant.seams and not variant.difference(installed) for variant in line.variants
    )


def _of_seam(part: Part, seam: Seam) -> Iterator[Break]:
    if seam.fit is Fit.LACKS:
        return
    if seam.fit is Fit.EXPORTS:
        yield Break(part, seam, Way.RENAMED, seam.attribute)
        return
    if seam.fit in (Fit.SETS, Fit.HAS):
        for name in seam.names:
            yield Break(part, seam, Way.RENAMED, name)
        return
    last = seam.attribute.rpartition(".")[2]
    if last not in PUBLIC | _COMMON and not last.startswith("__"):
        yield Break(part, seam, Way.RENAMED, last)
    if seam.fit is Fit.EXACT:
        yield Break(part, seam, Way.PARAMETERS, "")
    elif given := [name for name in seam.names if name != "self"]:
        yield Break(part, seam, Way.PARAMETERS, given[-1])


# Places of identifiers.


def _renamed(seam: Seam, name: str) -> dict[str, str]:
    if seam.module.startswith(_COMPILED):
        return _renamed_in_library(seam, name)
    own = _path(seam.module)
    if seam.fit in (Fit.SETS, Fit.HAS) and seam.attribute:
        files = _files(name, _scope(seam.module, name))
        kinds = {kind for file in files for kind in _declaring(ast.parse(_text(file)), name)}
        return {file: _replace(file, name, lambda tree: _members(tree, name, kinds)) for file in files}
    if "." not in seam.attribute and not _is_defined(own, name) and not _is_imported_from(seam.module, name):
        return {own: _renamed_alias(own, name)}
    return _renamed_everywhere(name, (own,) if name in _NEAR else _files(name, _scope(seam.module, name)))


def _renamed_everywhere(name: str, files: Collection[str]) -> dict[str, str]:
    return {file: _replace(file, name, lambda tree: [*_names(tree, name), *_members(tree, name)]) for file in files}


def _is_imported_from(module: str, name: str) -> bool:
    """Return whether other modules import it from there, though it is defined elsewhere."""
    imports = (node for file in _files(name, _scope(module, name)) for node in ast.walk(ast.parse(_text(file))))
    return any(
        isinstance(node, ast.ImportFrom) and node.module == module and any(one.name == name for one in node.names)
        for node in imports
    )


def _renamed_in_library(seam: Seam, name: str) -> dict[str, str]:
    kind = f"_native.{seam.attribute}"
    owner = f"next(one for one in {kind}.__mro__ if {name!r} in vars(one))" if seam.attribute else "_native"
    code = (
        "import torch._C._distributed_c10d as _native",
        f"_owner = {owner}",
        f"setattr(_owner, {name + LATER!r}, vars(_owner)[{name!r}])",
        f"delattr(_owner, {name!r})",
    )
    users = _files(name, ("torch",)) if name.startswith("_") else () if name in _OF_STORES else (_USER,)
    changed = _renamed_everywhere(name, users)
    before, import_, after = changed.get(_FIRST, _text(_FIRST)).partition("    from torch._C._distributed_c10d import")
    assert import_, f"{_FIRST} does not import the compiled names any more"
    return {**changed, _FIRST: before + "".join(f"    {line}\n" for line in code) + import_ + after}


def _scope(module: str, name: str) -> tuple[str, ...]:
    """Return the folders in which a name means this: torchrun's part of torch, or all of torch if it is private."""
    if module.startswith(_ELASTIC):
        return _TORCHRUN
    if module.startswith(_DATA):
        return (_DATA.replace(".", "/"),)
    return ("torch",) if name.startswith("_") else (_path(module).rpartition("/")[0],)


def _names(tree: ast.AST, name: str) -> Places:
    """Return the places where it is a variable, a function, a class, or is imported under this name."""
    found: Places = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            found.append((node.lineno, node.col_offset))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            found.append((node.lineno, node.col_offset + len("class " if isinstance(node, ast.ClassDef) else "def ")))
        elif isinstance(node, ast.alias) and node.name == name:
            found.append((node.lineno, node.col_offset))
        elif isinstance(node, ast.Global) and name in node.names:
            found.append((node.lineno, node.col_offset + ast.unparse(node).index(f" {name}") + 1))
    return found


def _members(tree: ast.AST, name: str, kinds: Collection[str] = ()) -> Places:
    """Return the places where it is an attribute, a class's declaration, a text, or an argument of a constructor.

    `kinds` are the classes that declare it. Without any it is no field, and methods are found by their names.
    """
    found: Places = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value) not in _PARAMETER_KINDS:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            found.append((node.end_lineno, node.end_col_offset - len(name.encode())))
        elif isinstance(node, ast.Constant) and node.value == name:
            found.append((node.lineno, node.col_offset + 1))
        elif isinstance(node, ast.ClassDef):
            found += [(one.lineno, one.col_offset) for part in node.body for one in _declared(part, name)]
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == name:
                    found.append((part.lineno, part.col_offset + len("def ")))
                    found += [place for setter in part.decorator_list for place in _names(setter, name)]
        elif isinstance(node, ast.Call) and _called(node) in kinds:
            found += [(word.lineno, word.col_offset) for word in node.keywords if word.arg == name]
    return found


def _declaring(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(list(_declared(part, name)) for part in node.body):
            yield node.name


def _declared(statement: ast.stmt, name: str) -> Iterator[ast.Name]:
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else []
    )
    yield from (target for target in targets if isinstance(target, ast.Name) and target.id == name)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


# Parameters.


def _with_parameter(seam: Seam) -> dict[str, str]:
    """Return the source with an additional parameter, which has a default."""
    own, function = _function(seam)
    lines = _text(own).splitlines(keepends=True)
    if isinstance(function, ast.ClassDef):  # without a constructor of its own
        at = function.body[0]
        lines.insert(at.lineno - 1, f"{' ' * at.col_offset}def __init__(self, later=None): super().__init__()\n\n")
        return {own: "".join(lines)}
    given = function.args
    nodes: list[ast.arg | ast.expr] = [given.args[-1], *given.defaults]
    ends = [(node.end_lineno or 0, node.end_col_offset or 0) for node in nodes]
    return {own: _spliced(lines, [(*max(ends), 0, ", later=None")])}


def _with_renamed_parameter(seam: Seam, name: str) -> dict[str, str]:
    own, function = _function(seam)
    called = seam.attribute.removesuffix(".__init__").rpartition(".")[2]
    changed = {}
    for file in {own, *_files(called, _scope(seam.module, called))}:
        tree = ast.parse(_text(file))
        places: Places = []
        if file == own and isinstance(function, ast.ClassDef):  # a data class
            places += _members(tree, name, {called})
        elif file == own:
            places += _in_function(function, name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) == called:
                places += [(word.lineno, word.col_offset) for word in node.keywords if word.arg == name]
        if places:
            changed[file] = _put(file, name, places)
    return changed


def _in_function(function: ast.FunctionDef | ast.ClassDef, name: str) -> Places:
    inside = list(ast.walk(function))
    return [
        (node.lineno, node.col_offset)
        for node in inside
        if (isinstance(node, ast.arg) and node.arg == name) or (isinstance(node, ast.Name) and node.id == name)
    ]


def _function(seam: Seam) -> tuple[str, ast.FunctionDef | ast.ClassDef]:
    """Return the file and the function of a seam: a class's constructor, or the class if that is not written out."""
    found: Any = reduce(getattr, seam.attribute.split("."), import_module(seam.module))
    if isinstance(found, type):
        made = getattr(found, "__init__")  # noqa: B009 - of the class, whatever that is
        found = made if "__code__" in dir(made) and made.__code__.co_filename.endswith(".py") else found
    found = inspect.unwrap(found)
    file = str(Path(inspect.getfile(found)).relative_to(parent()))
    *owners, last = found.__qualname__.split(".")
    tree: Any = ast.parse(_text(file))
    for name in (*owners, last):
        tree = next(node for node in ast.walk(tree) if getattr(node, "name", "") == name and hasattr(node, "body"))
    assert isinstance(tree, ast.FunctionDef | ast.ClassDef)
    return file, tree


# Files.


@cache
def parent() -> Path:
    """Return the directory in which the installed torch lies."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@cache
def _text(file: str) -> str:
    return (parent() / file).read_text()


def _path(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}.py" if (parent() / f"{path}.py").is_file() else f"{path}/__init__.py"


@cache
def _files(word: str, under: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sources of torch that contain a word."""
    found = subprocess.run(
        ["grep", "-rlwF", "--include=*.py", word, *under], cwd=parent(), capture_output=True, text=True, check=False
    )
    return tuple(sorted(found.stdout.split()))


def _is_defined(file: str, name: str) -> bool:
    return bool(re.search(rf"(?m)^\s*(?:def|class) {name}\b|^{name}\b[^\n=]*=", _text(file)))


def _replace(file: str, name: str, find: Callable[[ast.AST], Places]) -> str:
    return _put(file, name, find(ast.parse(_text(file))))


def _renamed_alias(file: str, name: str) -> str:
    """Return the source with another name for an import of this file alone."""
    tree = ast.parse(_text(file))
    imported = [one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names]
    imports = {(one.lineno, one.col_offset) for one in imported}
    places = set(_names(tree, name))
    edits = [(line, column, len(name), f"{name} as {name}{LATER}") for line, column in places & imports]
    edits += [(line, column, len(name), f"{name}{LATER}") for line, column in places - imports]
    return _spliced(_text(file).splitlines(keepends=True), edits)


def _put(file: str, name: str, places: Places) -> str:
    edits = [(line, column, len(name), f"{name}{LATER}") for line, column in set(places)]
    return _spliced(_text(file).splitlines(keepends=True), edits)


def _spliced(lines: list[str], edits: list[tuple[int, int, int, str]]) -> str:
    for line, column, length, text in sorted(edits, reverse=True):
        raw = lines[line - 1].encode()
        lines[line - 1] = (raw[:column] + text.encode() + raw[column + length :]).decode()
    return "".join(lines)
