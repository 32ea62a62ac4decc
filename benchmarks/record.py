"""Measures the figures of one command anew, and writes them into `figures.json` and the pages.

    python -m benchmarks.record python -m benchmarks.recovery --pairs 5 --json

The command is one of `figures.json`. It is run as it stands there; what it prints is shown, and its last line has the
figures. If it fails, or a figure is missing, nothing is written.
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
    """This one, in words."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} cores, {model[1] if model else platform.machine()}"


def last_line(command: str) -> object:
    """Run a command, show what it prints, and read its last line. Raises `FigureError`."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    line = ""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        raise FigureError(f"{command}: found exit status {process.returncode}, expected 0; see what it has said")
    try:
        return json.loads(line)
    except ValueError as error:
        raise FigureError(f"{command}: found {line.strip()!r} in its last line, expected JSON") from error


def record(command: str, where: str, path: Path = FILE) -> Run:
    """Measure one command's figures, and write them down. Raises `FigureError`."""
    runs = read_runs(path)
    known = {run.command: place for place, run in enumerate(runs)}
    if command not in known:
        raise FigureError(f"found {command!r}, expected a command of {path.name}: {'; '.join(known)}")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    fresh = runs[known[command]].of(last_line(command), today, where)
    runs[known[command]] = fresh
    write_runs(runs, path)
    return fresh


def main(words: list[str] | None = None) -> int:
    """Measure, and write file and pages; 1 with the reason if nothing was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=machine(), help="what it is run on, in words (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="one of figures.json")
    args = parser.parse_args(words)
    try:
        fresh = record(shlex.join(args.command), args.machine)
    except FigureError as error:
        print(f"benchmarks.record: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{figure.name}: {figure.text}" for figure in fresh.figures))
    return subprocess.run([sys.executable, ROOT / "scripts" / "make-docs.py"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
