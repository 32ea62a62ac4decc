"""What the self-check said of a script, before the first kill."""

import re
from enum import Enum

from tests.scripts.play import Run


class Verdict(str, Enum):
    """Whether a job can go on exactly after a fault."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    INEXACT = "not exact"
    NONE = ""
    """There is no self-check, or it has said nothing yet."""


_REFUSED = re.compile(r"at a fault (in it )?all processes start anew")


def verdict_of(run: Run) -> Verdict:
    """Return the self-check's verdict of a run.

    There is none yet: a refusal in the log stands for it.
    """
    text = run.said_before if run.killed else run.output
    return Verdict.INEXACT if _REFUSED.search(text) else Verdict.NONE
