"""The grades of a script."""

from enum import Enum


class Grade(str, Enum):
    """What became of a script with kills, beside the same script without."""

    IDENTICAL = "identical"
    """In place, and all results equal those of the undisturbed run bit for bit."""
    REFUSED = "refused"
    """A warning named file and line before anything failed; then all started anew, or what was warned of differs."""
    RESTARTED = "restarted"
    """All processes started anew, and the results are those that stock torchrun has."""
    SILENT = "silent"
    """Other results, and nothing was said."""
    FAILED = "failed"
    """It hung, ended with another status than stock torchrun, or a healthy rank was replaced."""
