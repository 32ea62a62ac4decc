"""`taskd run --rehearse SCRIPT`: rehearse a script with kills, and report whether it is exact.

Rules:

1. Its own options come first, then torchrun's, then the script and its arguments. The first word that is not one of its
   own options, and all words after it, belong to torchrun.
2. Exit codes: 0 if the script is exact, 1 if not, 2 if it could not be rehearsed.
3. The script runs in copies of the working directory. The copies are removed afterwards.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from taskd.adaptors.torchrun.launcher import torchrun_file
from taskd.cli.arguments import OneLineParser
from taskd.cli.complaint import complain
from taskd.errors import TaskdError

_STEPS: Final = 40
_LIMIT_S: Final = 180.0
_WITH_VALUE: Final = ("--steps", "--share", "--limit")
_WITHOUT: Final = ("--json", "--output", "-h", "--help")


def rehearse(arguments: Sequence[str]) -> int:
    """Rehearse one script. Return 0, 1 or 2. Exits for wrong usage."""
    own, rest = _split(arguments)
    options = _parser().parse_args(own)
    if not rest:
        print("taskd run --rehearse: found no script, expected torchrun's options and a script", file=sys.stderr)
        return 2
    from taskd.adaptors.rehearsal.rehearse import LEAST, parse
    from taskd.adaptors.rehearsal.rehearse import rehearse as play
    from taskd.cli.rehearse_page import show

    if options.steps < LEAST:
        print(f"taskd run --rehearse: found --steps {options.steps}, expected {LEAST} or more", file=sys.stderr)
        return 2
    begun_s = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        torchrun_file()
        report = play(
            parse(rest),
            options.steps,
            options.limit,
            options.share,
            lambda text: print(f"{time.monotonic() - begun_s:4.0f} s: {text}", file=sys.stderr, flush=True),
        )
    except TaskdError as error:
        complain("run --rehearse", error)
        return 2
    show(report, as_json=options.json, with_output=options.output)
    return report.verdict.outcome.value


def _end(number: int, _frame: object) -> None:
    """Exit by an exception, once, so that the started processes end and the copies are removed."""
    for again in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    sys.exit(128 + number)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into the rehearsal's own options and torchrun's words."""
    at = 0
    while at < len(arguments):
        word = arguments[at].partition("=")[0]
        if word in _WITH_VALUE:
            at += 1 if "=" in arguments[at] else 2
        elif word in _WITHOUT:
            at += 1
        else:
            break
    return list(arguments[:at]), list(arguments[at:])


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="taskd run --rehearse",
        usage="%(prog)s [options] [torchrun's options] SCRIPT [script's arguments]",
        description="Trains some steps undisturbed and with kills: is the script exact, or which line is why not?",
    )
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N", help=f"committed steps (default {_STEPS})")
    parser.add_argument("--json", action="store_true", help="the verdict as one line of JSON")
    parser.add_argument(
        "--share", action="append", default=[], metavar="PATH", help="of the directory, linked and not copied (data)"
    )
    parser.add_argument(
        "--limit", type=float, default=_LIMIT_S, metavar="SECONDS", help=f"for each run (default {_LIMIT_S:.0f})"
    )
    parser.add_argument("--output", action="store_true", help="show the end of what the last run has written, too")
    return parser
