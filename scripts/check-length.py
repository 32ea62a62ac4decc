"""Refuse source files of more than 400 lines: a file that long does more than one thing."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("taskd", "csrc", "tests", "examples", "benchmarks", "scripts")
SUFFIXES = {".py", ".c", ".h", ".sh"}
MOST_LINES = 400
GENERATED = {ROOT / "taskd" / "runtime" / "_box.py"}


def main() -> int:
    """Print every file that is too long; return 1 if there is one, else 0."""
    sources = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES)
    lengths = {path: len(path.read_text().splitlines()) for path in sources if path not in GENERATED}
    too_long = {path: length for path, length in lengths.items() if length > MOST_LINES}
    for path, length in too_long.items():
        print(f"{path.relative_to(ROOT)}: {length} lines, at most {MOST_LINES}; split it by what it decides or does")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
