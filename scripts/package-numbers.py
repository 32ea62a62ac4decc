"""Print the size, the structure and the wording of the package in numbers: `bash scripts/lint.sh --numbers`.

Rules:

1. Import cycles are the strongly connected components of the import graph. Imports for type checkers and imports
   inside functions count too.
2. A room is a package: `taskd/core/recovery` is one, `taskd/core` without its packages is another.
3. An object's own attributes are its annotated fields and the attributes that its methods assign to `self`.
4. Words are counted in comments, docstrings and names. Other string literals are left out: they are program output.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "taskd"
CORE, TRAINING = "taskd.core", "taskd.adaptors.training"
GENERATED = {PACKAGE / "runtime" / "_box.py"}
RULES = ("D205", "D400", "D401", "D403", "D404", "D415")
MOST_ATTRIBUTES = 12
SHORT_LINES, LONG_LINES = 60, 600
OPENING = re.compile(r"(?i)\W*(what|who|whom|whose|whether|of|that)\b")
SPEECH = re.compile(r"(?i)(?<![a-z])(tell|tells|told|telling|say|says|said|saying|hear|hears|heard|hearing)(?![a-z])")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Graph = Mapping[str, set[str]]


class Module(NamedTuple):
    """One source file."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.text.splitlines())


def modules_of(package: Path) -> dict[str, Module]:
    """Read the modules below a package's folder, by name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        if path not in GENERATED:
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            found[name] = Module(name, path.read_text(), ast.parse(path.read_bytes()))
    return found


def imports_between(modules: Iterable[str]) -> Graph:
    """Return the modules of taskd that each of these imports directly."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in modules}


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one node, by Tarjan's algorithm (1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            cut = stack.index(node)
            component = stack[cut:]
            del stack[cut:]
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def between_rooms(graph: Graph, below: str) -> Graph:
    """Return the imports between the rooms below a package."""
    packages = {name.rpartition(".")[0] for name in graph}

    def room_of(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    rooms: dict[str, set[str]] = {}
    for name, imported in graph.items():
        if name.startswith(f"{below}."):
            room = room_of(name)
            others = {room_of(other) for other in imported if other.startswith(f"{below}.")}
            rooms.setdefault(room, set()).update(others - {room})
    return rooms


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names of an object's own attributes."""
    fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
    stored = [part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)]
    return {field.id for field in fields if isinstance(field, ast.Name)} | {
        part.attr for part in stored if isinstance(part.value, ast.Name) and part.value.id == "self"
    }


def is_foreign_assignment(node: ast.AST) -> bool:
    """Return whether a node assigns to an attribute of another object than `self`."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def is_phase_test(node: ast.AST) -> bool:
    """Return whether a node compares a phase or checks its class."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        sides = node.args[:1]
    else:
        return False
    return any(_ends_in_phase(side) for side in sides)


def _ends_in_phase(node: ast.AST) -> bool:
    return "phase" in (getattr(node, "attr", None), getattr(node, "id", None))


def docstrings(module: Module) -> Iterator[str]:
    """Yield the docstrings and the strings below fields."""
    for node in ast.walk(module.tree):
        for part in node.body if isinstance(node, DOCUMENTED) else ():
            value = part.value if isinstance(part, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def comments(module: Module) -> Iterator[str]:
    """Yield the comments, without the `#`."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def names_in(module: Module) -> Iterator[str]:
    """Yield each name as often as it is written."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def ruff_counts(rules: Iterable[str]) -> Counter[str]:
    """Count the findings of these rules of ruff in the package."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    options = ["--isolated", "--output-format", "concise", "--select", ",".join(rules)]
    done = subprocess.run([ruff, "check", *options, str(PACKAGE)], capture_output=True, text=True, check=False)
    return Counter(re.findall(r": (D\d{3}) ", done.stdout))


def sizes(modules: Mapping[str, Module], graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the numbers of files and lines."""
    training = [module for name, module in modules.items() if f"{name}.".startswith(f"{TRAINING}.")]
    importers = Counter(other for imported in graph.values() for other in imported)
    short = [name for name, module in modules.items() if module.lines < SHORT_LINES and importers[name] == 1]
    yield "files in taskd", str(len(modules))
    yield "lines in taskd", str(sum(module.lines for module in modules.values()))
    yield "files in adaptors/training", str(len(training))
    yield "lines in adaptors/training", str(sum(module.lines for module in training))
    yield f"modules under {SHORT_LINES} lines with one importer", str(len(short))
    yield f"modules over {LONG_LINES} lines", str(sum(module.lines > LONG_LINES for module in modules.values()))


def structure(modules: Mapping[str, Module], graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the numbers of cycles, wide classes, foreign assignments and tests of a phase."""
    found = cycles(graph)
    yield "import cycles of modules", f"{len(found)} ({sum(map(len, found))} modules)"
    for below in (CORE, TRAINING):
        found = cycles(between_rooms(graph, below))
        yield f"import cycles of rooms in {below}", f"{len(found)} ({sum(map(len, found))} rooms)"
    nodes = [(name, node) for name, module in modules.items() for node in ast.walk(module.tree)]
    wide = sorted(
        ((len(attributes_of(node)), node.name) for _, node in nodes if isinstance(node, ast.ClassDef)), reverse=True
    )
    yield f"classes with more than {MOST_ATTRIBUTES} attributes", str(sum(count > MOST_ATTRIBUTES for count, _ in wide))
    yield "widest classes", ", ".join(f"{name} {count}" for count, name in wide[:5])
    foreign = Counter(name.split(".")[1] for name, node in nodes if is_foreign_assignment(node))
    yield (
        "assignments to another object's attributes",
        ", ".join(f"{room} {count}" for room, count in sorted(foreign.items())),
    )
    phases = [name for name, node in nodes if name.startswith(f"{CORE}.") and is_phase_test(node)]
    yield f"tests of a phase in {CORE}", str(len(phases))


def wording(modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """Yield the counts of ruff's findings and of words."""
    counts = ruff_counts(RULES)
    yield "ruff", ", ".join(f"{rule} {counts[rule]}" for rule in RULES)
    lines = sum(module.lines for module in modules.values())
    written = [text for module in modules.values() for text in docstrings(module)]
    noted = [text for module in modules.values() for text in comments(module)]
    for kind, texts in (("docstrings", written), ("comments", noted)):
        opened = sum(OPENING.match(text) is not None for text in texts)
        yield f"{kind} that open with what/who/whether/of/that", f"{opened} of {len(texts)} ({opened / len(texts):.1%})"
    named = [name for module in modules.values() for name in names_in(module)]
    for kind, texts in (("docstrings and comments", [*written, *noted]), ("names", named)):
        spoken = sum(len(SPEECH.findall(text)) for text in texts)
        yield f"tell/say/hear in {kind}, per 1,000 lines", f"{1000 * spoken / lines:.1f} ({spoken})"
    yield "comments per 100 lines", f"{100 * len(noted) / lines:.2f}"


def main() -> int:
    """Print the numbers, one a line."""
    modules = modules_of(PACKAGE)
    graph = imports_between(modules)
    for name, value in (*sizes(modules, graph), *structure(modules, graph), *wording(modules)):
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
