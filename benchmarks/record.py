"""New measurement of one command's figures, written into `figures.json` and the pages.

    python -m benchmarks.record python -m benchmarks.heap --json

The command must be one of `figures.json`, and runs as written there. Its output is shown, and its last line has the
figures. If the command fails, or a figure is missing, nothing is written. `scripts/figures.sh` runs all headline
commands.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.figures import FILE, ROOT, FigureError, Run, read_runs, write_runs


def machine() -> str:
    """Return the kind of this machine: its cores and their model."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} cores, {model[1] if model else platform.machine()}"


def commit() -> str:
    """Return the commit that is measured, with a `+` if code has changed since; "" outside of a git checkout."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return ""
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "taskd", "csrc", "benchmarks/*.py"], check=False)
    return found.stdout.strip() + ("+" if changed.returncode else "")


def last_line(command: str) -> object:
    """Run a command, show its output, and return its last line. Raise `FigureError` if it fails."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    line = ""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        raise FigureError(f"{command}: found exit status {process.returncode}, expected 0; see its output")
    try:
        return json.loads(line)
    except ValueError as error:
        raise FigureError(f"{command}: found {line.strip()!r} in its last line, expected JSON") from error


def today() -> str:
    """Return the date in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def record(command: str, where: str, path: Path = FILE) -> Run:
    """Measure and record the figures of one command. Raise `FigureError` if it is unknown, fails, or lacks a figure."""
    runs = read_runs(path)
    known = {run.command: place for place, run in enumerate(runs)}
    if command not in known:
        raise FigureError(f"found {command!r}, expected a command of {path.name}: {'; '.join(known)}")
    fresh = runs[known[command]].measured(last_line(command), today(), where, commit())
    runs[known[command]] = fresh
    write_runs(runs, path)
    return fresh


def write_pages() -> int:
    """Write the recorded figures into all pages; return the exit status."""
    return subprocess.run([sys.executable, ROOT / "scripts" / "make-docs.py"], check=False).returncode


def main(words: list[str] | None = None) -> int:
    """Measure, and write the file and the pages; return 1 if nothing was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=machine(), help="kind of machine (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of figures.json")
    args = parser.parse_args(words)
    try:
        fresh = record(shlex.join(args.command), args.machine)
    except FigureError as error:
        print(f"benchmarks.record: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{figure.name}: {figure.text}" for figure in fresh.figures))
    return write_pages()


if __name__ == "__main__":
    sys.exit(main())
