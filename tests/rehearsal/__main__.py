"""Rehearse the scripts of `examples/scripts`, and compare the verdicts: `python -m tests.rehearsal --json`."""

import argparse
import json
import subprocess
import sys

from tests.rehearsal.catalog import FOLDER, SCRIPTS, one_line, rehearse, wrong


def main() -> int:
    """Rehearse the scripts. Return 0 if every verdict is right."""
    parser = argparse.ArgumentParser(prog="scripts/rehearse.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each script, and one for all")
    parser.add_argument("--only", metavar="TEXT", default="", help="only scripts with this in their name")
    args = parser.parse_args()
    chosen = [script for script in SCRIPTS if args.only in script.name]
    if not chosen:
        parser.error(f"no script has {args.only!r} in its name; there are: {', '.join(s.name for s in SCRIPTS)}")
    failed = []
    for script in chosen:
        try:
            status, verdict, said = rehearse(FOLDER / script.script)
            why = wrong(script, status, verdict)
        except subprocess.TimeoutExpired:
            status, verdict, said, why = -1, {}, "", "it did not end in time"
        line = one_line(script, status, verdict, why)
        print(json.dumps(line) if args.json else f"{'right' if not why else 'WRONG'} {script.name}: {line}", flush=True)
        if why:
            failed.append(script.name)
            print(said, file=sys.stderr)
    last = {"scripts": len(chosen), "right": len(chosen) - len(failed), "wrong": failed}
    print(json.dumps(last), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
