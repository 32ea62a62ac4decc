"""Command line of `taskd chaos`: its scenarios and their options.

Rules:

1. Impossible values (a share of 120 %, a stop that is longer than its period) are rejected here, with exit code 2.
2. A scenario accepts only the options that have a meaning for it.
"""

import argparse
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Final

SCENARIOS: Final = {
    "kill-check": "kill the processes of this node's check as soon as they appear, again and again",
    "kill": "kill a rank, once or every so many seconds",
    "stop": "stop a rank (SIGSTOP) until the scenario ends",
    "pause": "stop a rank for so long",
    "delay": "slow a rank down: it stands for a while in every period",
    "cpu": "keep the job's CPUs busy",
    "memory": "take memory beside the ranks",
    "disk": "take space on a disk",
    "cut-link": "lose the packets of an interface, or those of one peer",
    "slow-link": "let an interface send slowly",
}
_EPILOG: Final = """\
It strikes only processes of the one job, and undoes what it did on Ctrl-C, SIGTERM, after --for, and if it is killed.

exit code: 0 played and undone, 1 not (the reason is shown), 2 wrong usage
"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Exits with code 2 for wrong usage."""
    main, scenarios = _parsers()
    options = main.parse_args(list(words))
    wrong = _contradiction(options)
    if wrong:
        scenarios[options.scenario].error(wrong)
    return options


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    main = argparse.ArgumentParser(
        prog="taskd chaos",
        description="Play a fault on a running job, on this node, and undo it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    adds = main.add_subparsers(dest="scenario", metavar="SCENARIO", required=True)
    listed = adds.add_parser("list", help="what is seen of the job, and which scenarios can be played here")
    _add_job(listed)
    scenarios = {name: _scenario(adds, name) for name in SCENARIOS}
    for name in ("kill", "stop", "pause", "delay"):
        _add_rank(scenarios[name])
    scenarios["kill"].add_argument(
        "--every", type=_positive, dest="every_s", metavar="S", help="again after so many seconds"
    )
    delay = scenarios["delay"]
    delay.add_argument("--ms", type=_positive, required=True, metavar="MS", help="how long it stands each time")
    delay.add_argument("--every", type=_positive, dest="every_s", default=1.0, metavar="S", help="period (default: 1)")
    scenarios["cpu"].add_argument("--percent", type=_percent, default=90.0, metavar="P", help="(default: %(default)g)")
    _add_amount(scenarios["memory"])
    scenarios["memory"].add_argument(
        "--any-victim", action="store_true", help="let the kernel choose whom to kill for it"
    )
    _add_amount(scenarios["disk"])
    scenarios["disk"].add_argument("--directory", type=Path, metavar="DIR", help="(default: the job's run directory)")
    _add_network(scenarios)
    for name in ("memory", "disk", "cut-link", "slow-link"):
        scenarios[name].add_argument("--yes", action="store_true", help="also where others may be hit")
    return main, {"list": listed, **scenarios}


def _add_network(scenarios: dict[str, argparse.ArgumentParser]) -> None:
    for name in ("cut-link", "slow-link"):
        scenarios[name].add_argument("--interface", metavar="IF", help="(default: the job's, or the only one)")
    scenarios["cut-link"].add_argument("--peer", metavar="HOST", help="only the packets to and from this host")
    scenarios["cut-link"].add_argument(
        "--down", action="store_true", help="take the interface down, as a pulled cable does"
    )
    scenarios["slow-link"].add_argument(
        "--mbit", type=_positive, required=True, metavar="N", help="Mbit/s that it may send"
    )


def _contradiction(options: argparse.Namespace) -> str:
    match options.scenario:
        case "kill" if options.for_s is not None and options.every_s is None:
            return "--for bounds what is done --every so often; give --every too, or neither"
        case "pause" if options.for_s is None:
            return "a pause has a length: give --for SECONDS (without an end it is `taskd chaos stop`)"
        case "delay" if options.ms >= options.every_s * 1e3:
            return f"--ms {options.ms:g} is not shorter than its period, --every {options.every_s:g} s"
        case "cut-link" if options.peer is not None and options.down:
            return "--down cuts all packets of the interface; give --peer or --down"
    return ""


def _scenario(scenarios: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str) -> argparse.ArgumentParser:
    one = scenarios.add_parser(name, help=SCENARIOS[name], description=f"{SCENARIOS[name].capitalize()}.")
    one.add_argument("--for", type=_positive, dest="for_s", metavar="S", help="end and undo after so many seconds")
    one.add_argument("--wait", type=_positive, dest="wait_s", metavar="S", help="wait so long for the job to be there")
    one.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    _add_job(one)
    return one


def _add_job(one: argparse.ArgumentParser) -> None:
    one.add_argument("--job", metavar="NAME", help="the job's name, where this node has several")
    one.add_argument("--run-dir", type=Path, metavar="DIR", help="the job's run directory, the same")
    one.add_argument("--agent", type=int, metavar="PID", help="the job's torchrun, the same")


def _add_rank(one: argparse.ArgumentParser) -> None:
    who = one.add_mutually_exclusive_group(required=True)
    who.add_argument("rank", nargs="?", type=_rank, metavar="RANK", help="of the job; it must be on this node")
    who.add_argument("--rank", dest="named_rank", type=_rank, metavar="R", help="the same")
    who.add_argument("--local-rank", type=_rank, metavar="L", help="its number on this node, from 0")


def _add_amount(one: argparse.ArgumentParser) -> None:
    amount = one.add_mutually_exclusive_group(required=True)
    amount.add_argument("--mib", type=_whole, metavar="N", help="take so much")
    amount.add_argument("--percent", type=_percent, metavar="P", help="take until so much of all is in use")


def _positive(text: str) -> float:
    number = _number(text)
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return number


def _percent(text: str) -> float:
    number = _number(text)
    if not 0 < number <= 100:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a percentage above 0 and up to 100")
    return number


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number above 0")
    return int(text)


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a rank, from 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan
