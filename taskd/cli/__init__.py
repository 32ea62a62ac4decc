"""The command line: `taskd run`, `manager`, `check`, `drain`, `blackbox`, `chaos`, `patch` and `doctor`.

Rules:

1. The exit code of `run` is torchrun's own. With --rehearse it is 0 for exact, 1 for not exact, 2 for no verdict.
2. The exit code of all other commands is 0 if all is well and 1 if not. 2 means wrong usage, with a line on the right
   usage. For `patch`, 2 also means a refusal.
3. Standard output is for results, standard error for everything else.
"""

import sys
from collections.abc import Sequence

import taskd

_USAGE = """usage: taskd run [torchrun's options] SCRIPT [script's arguments]
       taskd run --rehearse [--steps N] [--json] [torchrun's options] SCRIPT [script's arguments]
       taskd manager --nodes N --procs-per-node N [--port PORT] [manager's options]
       taskd check [--nproc N | --manager HOST:PORT] [--json] [--seconds SECONDS]
       taskd drain NODE [--manager HOST:PORT] [--timeout SECONDS]
       taskd blackbox [FILE|PID|RUN_DIR] [--json] [--all]
       taskd chaos SCENARIO [scenario's options]
       taskd patch apply|revert|status [--python PYTHON] [--file RUN_PY]
       taskd doctor [RUN_DIR] [--json]
       taskd --version

run      torchrun with taskd switched on; takes every option of torchrun; with --rehearse in front: some steps of the
         script with kills, and whether it is exact or which line is why
manager  serve the nodes of a job, in place of a manager.py; one node alone needs none
check    how fast this machine computes, copies, sends and writes, and whether it does so right
drain    move the ranks of a node to a spare one, at a step boundary
blackbox what is recorded of a process or a job, also of a dead one
chaos    play a fault on a running job, and undo it
patch    the line in torchrun's own file that loads taskd, where its plugins are not loaded
doctor   whether taskd is in place, fits the installed torch, and what is switched on
"""


def main(argv: Sequence[str] | None = None) -> int:  # noqa: PLR0911 - one for each command
    """Run one command. Return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    match words:
        case ["run", *rest]:
            from taskd.cli.run import run

            return run(rest)
        case ["manager", *rest]:
            from taskd.cli.manager import manager

            return manager(rest)
        case ["check", *rest]:
            from taskd.cli.check import check

            return check(rest)
        case ["drain", *rest]:
            from taskd.cli.drain import drain

            return drain(rest)
        case ["blackbox", *rest]:
            from taskd.cli.blackbox import blackbox

            return blackbox(rest)
        case ["chaos", *rest]:
            from taskd.cli.chaos import chaos

            return chaos(rest)
        case ["patch", *rest]:
            from taskd.cli.patch import patch

            return patch(rest)
        case ["doctor", *rest]:
            from taskd.cli.doctor import doctor

            return doctor(rest)
        case ["--version"]:
            print(f"taskd {taskd.__version__}")
            return 0
        case ["-h" | "--help"]:
            print(_USAGE, end="")
            return 0
        case _:
            found = f"found {words[0]!r}" if words else "found no command"
            known = "run, manager, check, drain, blackbox, chaos, patch or doctor"
            print(f"taskd: {found}, expected {known}\n{_USAGE}", end="", file=sys.stderr)
            return 2
