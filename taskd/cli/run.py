"""`taskd run`: torchrun with taskd switched on. It needs neither a patched torch nor torchrun's plugin."""

import sys
from collections.abc import Sequence

from taskd.adaptors.torchrun.launcher import launch, torchrun_file
from taskd.cli.complaint import complain
from taskd.errors import TaskdError

_REHEARSE = "--rehearse"
_HELP = f"""taskd's own, as the first word:
  {_REHEARSE}  some steps of the script with kills, and whether it is exact; see taskd run {_REHEARSE} --help

torchrun's:
"""


def run(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments, or a rehearsal. Return the exit code.

    torchrun may exit first, by SystemExit or by its failure report.
    """
    if not arguments:
        print(
            "taskd run: found no script, expected torchrun's options and a script; see taskd run --help",
            file=sys.stderr,
        )
        return 2
    if arguments[0] == _REHEARSE:
        from taskd.cli.rehearse import rehearse

        return rehearse(arguments[1:])
    try:
        torchrun_file()
    except TaskdError as error:
        complain("run", error)
        return 1
    if arguments[0] in ("-h", "--help"):
        print(_HELP, flush=True)
    launch(arguments)
    return 0
