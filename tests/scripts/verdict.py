"""The self-check's verdict on a script, before the first kill."""

import re
from enum import Enum

from tests.scripts.play import Run


class Verdict(str, Enum):
    """Verdict on whether a job can go on exactly after a fault."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    INEXACT = "not exact"
    NONE = ""
    """No verdict: there is no self-check, or it had none yet."""


_FOUND = (
    (Verdict.INEXACT, re.compile(r"at a fault (in it )?all processes start anew|self-check: not exact")),
    (Verdict.PROVEN, re.compile(r"self-check: exact")),
    (Verdict.UNPROVEN, re.compile(r"self-check: unproven")),
)


def verdict_of(run: Run) -> Verdict:
    """Return the verdict in a run's output. A refusal counts as one, even in a job without a self-check."""
    return verdict_in(run.said_before if run.killed else run.output)


def verdict_in(text: str) -> Verdict:
    """Return the verdict in a job's output."""
    return next((verdict for verdict, pattern in _FOUND if pattern.search(text)), Verdict.NONE)
