"""`taskd run`: torchrun with taskd switched on, whether or not torch's files or plugins know of taskd."""

import sys
from collections.abc import Sequence

from taskd.adaptors.torchrun.launcher import launch


def run(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments. Returns 0, or leaves as torchrun does: SystemExit, or its failure report."""
    if not arguments:
        print(
            "taskd run: found no script, expected torchrun's options and a script; see taskd run --help",
            file=sys.stderr,
        )
        return 2
    if arguments[0] == "--rehearse":
        from taskd.cli.rehearse import rehearse

        return rehearse(arguments[1:])
    launch(arguments)
    return 0
