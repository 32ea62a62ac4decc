"""Check that mypy rejects mix-ups of ranks and places. At run time all are ints, so nothing else distinguishes them.

Rules, for the lines of scripts/mixups.py:

1. mypy reports an error for each line that ends in `# must fail`.
2. It reports none for any other line.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIXUPS = "scripts/mixups.py"
MARK = "# must fail"
ERROR = re.compile(rf"{re.escape(MIXUPS)}:(\d+): error: (.*)")


def errors(report: str) -> dict[int, str]:
    """Return mypy's last error for each line of `MIXUPS`. Errors of other files belong to the type check."""
    return {int(found[1]): found[2] for line in report.splitlines() if (found := ERROR.fullmatch(line))}


def complaints(source: str, found: Mapping[int, str]) -> Iterator[str]:
    """Yield every missing or unexpected mypy error for this source, and a complaint if no line is marked."""
    lines = source.splitlines()
    if not any(line.endswith(MARK) for line in lines):
        yield f"{MIXUPS}: found no line that ends in `{MARK}`, expected one for each mix-up"
    for number, line in enumerate(lines, 1):
        if line.endswith(MARK) and number not in found:
            yield f"{MIXUPS}:{number}: mypy lets this mix-up pass: {line.removesuffix(MARK).strip()}"
        elif not line.endswith(MARK) and number in found:
            yield f"{MIXUPS}:{number}: mypy refuses what is no mix-up: {found[number]}"


def main() -> int:
    """Print every complaint; return 1 if there is one or if mypy itself fails, else 0."""
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", "--hide-error-context", MIXUPS]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        print(ran.stdout + ran.stderr, end="", file=sys.stderr)
        return 1
    wrong = list(complaints((ROOT / MIXUPS).read_text(), errors(ran.stdout)))
    print("\n".join(wrong), end="\n" * bool(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
