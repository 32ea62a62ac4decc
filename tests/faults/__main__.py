"""Inject faults and check taskd's reports: `python -m tests.faults --json`, or some by name: `--only TEXT`."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.cgroups import CgroupUnavailableError
from tests.faults.job import build_native
from tests.faults.player import play
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.launch import end_as_by_an_error
from tests.nodes_space import NodesUnavailableError


def main() -> int:
    """Play the scenarios. Return 0 if every fault was reported as expected."""
    parser = argparse.ArgumentParser(prog="scripts/faults.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each scenario, and nothing else")
    parser.add_argument("--only", metavar="TEXT", default="", help="only scenarios with this in their name")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are, and how each fault is made")
    parser.add_argument("--keep", action="store_true", help="keep the folders of scenarios that went well, too")
    args = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if args.only in scenario.name]
    if not chosen:
        parser.error(f"no scenario has {args.only!r} in its name; there are: {', '.join(s.name for s in SCENARIOS)}")
    if args.list:
        describe(chosen, as_json=args.json)
        return 0
    end_as_by_an_error()
    root = Path(tempfile.mkdtemp(prefix="taskd-faults-"))
    native = build_native(root)
    results = [show(scenario, root, native, as_json=args.json, keep=args.keep) for scenario in chosen]
    if all(results) and not args.keep:
        shutil.rmtree(root)
    else:
        print(f"faults: folders are in {root}", file=sys.stderr)
    return 0 if all(results) else 1


def describe(scenarios: list[Scenario], *, as_json: bool) -> None:
    """Print a line for each scenario."""
    for scenario in scenarios:
        kinds = " or ".join(scenario.expected.kinds)
        if as_json:
            print(
                json.dumps(
                    {"name": scenario.name, "injection": scenario.injection, "expected": scenario.expected.kinds}
                )
            )
        else:
            print(f"{scenario.name}: {scenario.injection} -> {kinds}")


def show(scenario: Scenario, root: Path, native: Path, *, as_json: bool, keep: bool) -> bool:
    """Play a scenario and print its result. Return whether it was as expected."""
    folder = root / f"{SCENARIOS.index(scenario):02d}"  # short: sockets and run directories lie below
    folder.mkdir()
    begun_s = time.monotonic()
    try:
        played = play(scenario, folder, native)
    except (NodesUnavailableError, CgroupUnavailableError) as error:
        wrong = [f"this machine cannot make it: {error}"]
        print(
            json.dumps({"name": scenario.name, "ok": False, "wrong": wrong})
            if as_json
            else f"FAIL {scenario.name}: {wrong[0]}"
        )
        return False
    line = {**played.line, "seconds": round(time.monotonic() - begun_s, 1)}
    if as_json:
        print(json.dumps(line), flush=True)
    else:
        told = f"{line['kind']} {line['culprits']} after {line['diagnosis_s']} s of {line['limit_s']}"
        done = f"{line['strategy']} in {line['recovered_ms']} ms" if line["strategy"] else "nothing recovered"
        print(
            f"{'ok  ' if line['ok'] else 'FAIL'} {scenario.name}: {told}; {done} {'; '.join(line['wrong'])}", flush=True
        )
    if line["ok"] and not keep:
        shutil.rmtree(folder)
    return bool(line["ok"])


if __name__ == "__main__":
    sys.exit(main())
