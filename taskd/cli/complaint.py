"""Error output of a command: always one line, whatever names it contains."""

import sys

from taskd.errors import TaskdError
from taskd.wire.text import line


def complain(command: str, error: TaskdError) -> None:
    """Print the error of a command on standard error, in one line."""
    print(line(f"taskd {command}: {error}"), file=sys.stderr)
