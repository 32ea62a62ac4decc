"""Refuse a class name that is defined twice in the package: the name alone should identify the class."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "taskd"


def classes(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the place of definition of each class in the sources below this folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{path.relative_to(folder.parent)}:{node.lineno}"


def main(folder: Path = PACKAGE) -> int:
    """Print every name that several classes have; return 1 if there is one, else 0."""
    places: dict[str, list[str]] = {}
    for name, place in classes(folder):
        places.setdefault(name, []).append(place)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    for name, found in sorted(twice.items()):
        print(f"class {name}: {', '.join(found)}; give each a name that says more")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
