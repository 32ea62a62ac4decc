"""Train in torches that each differ in one place of the table of seams: `python -m tests.seams --json`."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.launch import end_as_by_an_error
from tests.seams.breaking import breaks
from tests.seams.farm import Farm
from tests.seams.play import Diagnosis, judge, play


def main() -> int:
    """Play the torches. Return 0 if every job ended with plain torchrun's weights and the one required warning."""
    parser = argparse.ArgumentParser(prog="scripts/seams.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each torch")
    parser.add_argument("--only", metavar="WORD", default="", help="those with WORD in their description")
    parser.add_argument("--list", action="store_true", help="say which there are")
    args = parser.parse_args()
    chosen = [broken for broken in breaks() if args.only in str(broken)]
    if not chosen:
        parser.error(f"nothing has {args.only!r} in its description: --list shows them")
    if args.list:
        print(*chosen, sep="\n")
        return 0
    end_as_by_an_error()
    os.nice(5)
    folder = Path(tempfile.mkdtemp(prefix="taskd-seams-"))
    try:
        farm = Farm(folder / "torch")
        plain, ours = play(farm, on=False), play(farm)
        if plain.status or ours.status or ours.lines or plain.digest != ours.digest:
            print(f"seams: the installed torch itself: plain {plain}, with taskd {ours}", file=sys.stderr)
            return 1
        diagnoses = [_show(one, as_json=args.json) for one in judge(farm, chosen, plain.digest)]
    finally:
        shutil.rmtree(folder)
    failed = [str(diagnosis.broken) for diagnosis in diagnoses if diagnosis.why]
    told = sum(diagnosis.told for diagnosis in diagnoses)
    print(json.dumps({"torches": len(diagnoses), "told": told, "unnoticed": len(diagnoses) - told, "failed": failed}))
    return int(bool(failed))


def _show(diagnosis: Diagnosis, *, as_json: bool) -> Diagnosis:
    if as_json:
        shown = {"torch": str(diagnosis.broken), "told": diagnosis.told, "why": diagnosis.why}
        print(json.dumps({**shown, "seconds": round(diagnosis.seconds, 1)}), flush=True)
    else:
        state = "FAILED" if diagnosis.why else "told" if diagnosis.told else "unnoticed"
        print(f"{state:<9} {diagnosis.seconds:5.1f} s  {diagnosis.broken}  {diagnosis.why}".rstrip(), flush=True)
    return diagnosis


if __name__ == "__main__":
    sys.exit(main())
