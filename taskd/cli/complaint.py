"""What a command says when it cannot do what it was asked for: one line, whatever names stand in it."""

import sys

from taskd.errors import TaskdError
from taskd.wire.text import line


def complain(command: str, error: TaskdError) -> None:
    """Tell it on standard error."""
    print(line(f"taskd {command}: {error}"), file=sys.stderr)
