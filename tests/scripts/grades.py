"""The grades of a script."""

from enum import Enum


class Grade(str, Enum):
    """Result of a script with kills, compared with the same script without."""

    IDENTICAL = "identical"
    """The recovery was in place, and all results equal those of the undisturbed run bit for bit."""
    REFUSED = "refused"
    """A warning named file and line before anything failed. Then all started anew, or the named values differ."""
    RESTARTED = "restarted"
    """All processes started anew, and the results are those of stock torchrun."""
    SILENT = "silent"
    """The results differ without any warning."""
    FAILED = "failed"
    """The script hung, ended with another status than stock torchrun, or a healthy rank was replaced."""
