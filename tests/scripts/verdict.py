"""The self-check's verdict on a script, before the first kill."""

import re
from enum import Enum

from tests.scripts.play import Run


class Verdict(str, Enum):
    """Whether a job can go on exactly after a fault."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    INEXACT = "not exact"
    NONE = ""
    """There is no self-check, or it had no verdict yet."""


_FOUND = (
    (Verdict.INEXACT, re.compile(r"at a fault (in it )?all processes start anew|self-check: not exact")),
    (Verdict.PROVEN, re.compile(r"self-check: exact")),
    (Verdict.UNPROVEN, re.compile(r"self-check: unproven")),
)


def verdict_of(run: Run) -> Verdict:
    """Return the verdict in a run's output. A refusal counts as one, in a job that does not check itself too."""
    return verdict_in(run.said_before if run.killed else run.output)


def verdict_in(text: str) -> Verdict:
    """Return the verdict in what a job has written."""
    return next((verdict for verdict, pattern in _FOUND if pattern.search(text)), Verdict.NONE)
