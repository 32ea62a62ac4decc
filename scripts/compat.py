"""Makes an environment for each version of torch, has `tests.compat` try it, and writes the table of the docs.

Called by `compat.sh`. Uses nothing but Python, for what is tried has environments of its own.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "torch-versions.md"
RECORDED = ROOT / "tests" / "seams" / "recorded.json"
BEGIN, END = "<!-- table: written by scripts/compat.sh -->\n", "<!-- end of table -->\n"
Line = dict[str, Any]
SET_UP, ALL = NOT_TRIED = ("set-up", "all")
"""What stands in the place of a promise in a line that says why no promise, or not every one, was tried."""
sys.path.insert(0, str(ROOT))

from taskd.adaptors.seams.parts import OLDEST, minor  # noqa: E402


def main() -> int:
    """0 if every promise was kept with every version."""
    known = [version for version in json.loads(RECORDED.read_text()) if minor(version) >= OLDEST]
    parser = argparse.ArgumentParser(prog="scripts/compat.sh", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of torch (default: {' '.join(known)})")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each promise")
    parser.add_argument("--only", metavar="TEXT", default="", help="only promises with this in their name")
    parser.add_argument("--list", action="store_true", help="say which versions are in the range")
    args = parser.parse_args()
    if args.list:
        print(*known, sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    lines: list[Line] = []
    for version in args.versions or known:
        found = list(try_version(version, args.only, as_json=args.json))
        lines += found
        if not args.only and not any(line["name"] in NOT_TRIED for line in found):
            write_table(version, found)
    failed = [f"{line['torch']} {line['name']}" for line in lines if not line["ok"]]
    print(json.dumps({"versions": len(args.versions or known), "promises": len(lines), "failed": failed}))
    return int(bool(failed) or not lines)


def try_version(version: str, only: str, *, as_json: bool) -> Iterator[Line]:
    """What becomes of each promise with this version."""
    folder = Path(tempfile.mkdtemp(prefix=f"taskd-compat-{version}-"))
    try:
        copy = folder / "taskd"
        copy_checkout(copy)
        env = {**os.environ, "TASKD_TORCH": f"torch=={version}"}
        setup = subprocess.run(["bash", "scripts/setup.sh"], cwd=copy, env=env, stdin=subprocess.DEVNULL, check=False)
        if setup.returncode:
            yield _show({"torch": version, "name": SET_UP, "ok": False, "says": "see above", "seconds": 0.0}, as_json)
            return
        command = [".venv/bin/python", "-m", "tests.compat", *(["--only", only] if only else [])]
        with subprocess.Popen(command, cwd=copy, env=env, stdout=subprocess.PIPE, text=True) as tries:
            assert tries.stdout is not None
            for text in tries.stdout:
                yield _show(json.loads(text), as_json)
        if tries.returncode not in (0, 1):
            says = f"tests.compat ended with status {tries.returncode}"
            yield _show({"torch": version, "name": ALL, "ok": False, "says": says, "seconds": 0.0}, as_json)
    finally:
        shutil.rmtree(folder)


def copy_checkout(copy: Path) -> None:
    """What is tracked, and what is new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def write_table(version: str, lines: list[Line]) -> None:
    """Put the row of this version into the page; those of other versions stay."""
    before, rest = PAGE.read_text().split(BEGIN)
    rows, after = rest.split(END)
    kept = {row.split("|")[1].strip().partition(" ")[0]: row for row in rows.splitlines() if row.startswith("| 2")}
    names = [line["name"] for line in lines]
    told = [line["says"].replace("|", "/") if line["ok"] else "**not kept**" for line in lines]
    kept[version] = f"| {version} (Python {'.'.join(platform.python_version_tuple()[:2])}) | {' | '.join(told)} |"
    ordered = sorted(kept.items(), key=lambda row: [int(number) for number in row[0].split(".")])
    head = f"| torch | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}\n"
    PAGE.write_text(before + BEGIN + head + "".join(f"{row}\n" for _, row in ordered) + END + after)


def _show(line: Line, as_json: bool) -> Line:
    state = "ok  " if line["ok"] else "FAIL"
    text = f"{state} {line['torch']:<14} {line['name']:<26} {line['seconds']:6.1f} s  {line['says']}"
    print(json.dumps(line) if as_json else text, flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())
