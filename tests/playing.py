"""The command line of programs that play scenarios on nodes of this machine: choice, output, and kept files."""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.faults.cgroups import CgroupUnavailableError
from tests.launch import end_as_by_an_error
from tests.nodes_space import NodesUnavailableError


class Named(Protocol):
    """A scenario."""

    @property
    def name(self) -> str:
        """Name by which it is shown and chosen."""
        ...


S = TypeVar("S", bound=Named)
Play = Callable[[S, Path], tuple[dict[str, Any], str]]
"""Plays a scenario with its files in a folder. Returns its line of JSON, with `wrong`, and a text for people."""


def main(
    tool: str,
    about: str,
    scenarios: Sequence[S],
    prepare: "Callable[[Path], Play[S]]",
    *,
    counted: str = "",
) -> int:
    """Play scenarios. Return 0 if every one went well. `prepare` gets a folder for work that is done once.

    `counted`: name of the scenarios in the last line of JSON, if it is not the tool's name.
    """
    parser = argparse.ArgumentParser(prog=f"scripts/{tool}.sh", description=about)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each scenario, and one for all of them")
    parser.add_argument("--only", metavar="TEXT", default="", help="only scenarios with this in their name")
    parser.add_argument("--keep", action="store_true", help="keep the folders of scenarios that went well, too")
    args = parser.parse_args()
    chosen = [scenario for scenario in scenarios if args.only in scenario.name]
    if not chosen:
        parser.error(f"no scenario has {args.only!r} in its name; there are: {', '.join(s.name for s in scenarios)}")
    end_as_by_an_error()
    root = Path(tempfile.mkdtemp(prefix=f"taskd-{tool}-"))
    play = prepare(root)
    try:
        results = [
            _show(play, scenario, root / f"{number:02d}", as_json=args.json) for number, scenario in enumerate(chosen)
        ]
    except (NodesUnavailableError, CgroupUnavailableError) as error:
        print(f"{tool}: this machine cannot make it: {error}", file=sys.stderr)
        return 1
    failed = [scenario.name for scenario, good in zip(chosen, results, strict=True) if not good]
    print(_sum(tool, len(chosen), failed, counted=counted if args.json else None), flush=True)
    if not failed and not args.keep:
        shutil.rmtree(root)
    else:
        print(f"{tool}: folders are in {root}", file=sys.stderr)
    return 1 if failed else 0


def _sum(tool: str, count: int, failed: list[str], *, counted: str | None) -> str:
    """Return the last line, as JSON if there is a word for the counted scenarios."""
    if counted is not None:
        return json.dumps({counted or tool: count, "ok": count - len(failed), "failed": failed})
    return f"{tool}: {count - len(failed)} of {count} as they should be" + "".join(f"; not {name}" for name in failed)


def _show(play: "Play[S]", scenario: S, folder: Path, *, as_json: bool) -> bool:
    """Play a scenario and print it. Return whether it went well. Names of folders are short, for sockets below them."""
    folder.mkdir()
    begun_s = time.monotonic()
    try:
        found, text = play(scenario, folder)
    except (NodesUnavailableError, CgroupUnavailableError):
        raise
    except Exception as error:  # noqa: BLE001 - the other scenarios are played all the same
        traceback.print_exc()
        found, text = {"name": scenario.name, "wrong": [f"{type(error).__name__}: {error}"[:2000]]}, "is not played"
    wrong = found["wrong"]
    found = {**found, "ok": not wrong, "seconds": round(time.monotonic() - begun_s, 1)}
    shown = f"{'ok  ' if not wrong else 'FAIL'} {scenario.name}: {text} {'; '.join(wrong)}"
    print(json.dumps(found) if as_json else shown, flush=True)
    return not wrong
