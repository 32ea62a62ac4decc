"""The command line of the programs that kill ranks of one job many times."""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.launch import end_as_by_an_error

Found = dict[str, Any]


def main(name: str, about: str, kills: int, judge: Callable[..., Found], good: Callable[[Found, int], bool]) -> int:
    """Play and judge. Return 0 if all is as required. `kills` is the default of the command line's number."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.sharded.{name}", description=about)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a line of JSON")
    args = parser.parse_args()
    end_as_by_an_error()
    folder = Path(tempfile.mkdtemp(prefix=f"taskd-{name}-"))
    found = judge(args.kills, args.seed, folder, limit_s=120 + 6.0 * args.kills)
    well = good(found, args.kills)
    text = ", ".join(f"{key} {value}" for key, value in found.items())
    print(json.dumps({**found, "ok": well}) if args.json else text, flush=True)
    return 0 if well else 1
