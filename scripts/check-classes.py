"""Check that each class of taskd/core uses composition instead of inheritance, and is small enough to read.

Rules:

1. A class may inherit only from Protocol, Enum, IntEnum, NamedTuple, Generic, Exception or a message type (Struct).
2. It has at most 12 fields and 20 methods. A `ClassVar` is not a field.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_FIELDS, MOST_METHODS = 12, 20
BASES = {"Protocol", "Enum", "IntEnum", "NamedTuple", "Generic", "Exception", "Struct"}


def complaints(path: Path) -> Iterator[str]:
    """Yield every violation of the rules in one file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            where = f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
            bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
            if bases - BASES:
                yield f"{where} inherits from {', '.join(sorted(bases - BASES))}, expected composition"
            fields = sum(isinstance(part, ast.AnnAssign) and not _shared(part) for part in node.body)
            if fields > MOST_FIELDS:
                yield f"{where} has {fields} fields, expected at most {MOST_FIELDS}"
            methods = sum(isinstance(part, ast.FunctionDef) for part in node.body)
            if methods > MOST_METHODS:
                yield f"{where} has {methods} methods, expected at most {MOST_METHODS}"


def _shared(part: ast.AnnAssign) -> bool:
    return ast.unparse(part.annotation).startswith("ClassVar")


def main() -> int:
    """Print every complaint; return 1 if there is one, else 0."""
    found = [text for path in sorted((ROOT / "taskd/core").rglob("*.py")) for text in complaints(path)]
    print("\n".join(found), end="\n" * bool(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
