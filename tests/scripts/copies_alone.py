"""A mutation of a script's processes: copies of the state are made and loaded, without what makes them exact."""

from typing import Any

from taskd.adaptors.training.copies import backups
from taskd.adaptors.training.proof.looks import EarlyLooks
from taskd.adaptors.training.script.behind import BehindCommit


def leave_copies_alone() -> None:
    """Forget whose state is each rank's own, bucket layouts, and what a fault has interrupted behind a commit."""

    def no_layouts(*_: Any) -> bool:
        return True

    def no_statistics(*_: Any) -> bool:
        return False

    def nothing(*_: Any) -> None:
        pass

    for owner, name, instead in (
        (backups, "record_layouts", no_layouts),
        (backups, "has_statistics", no_statistics),
        (EarlyLooks, "_keep_or_refuse", nothing),
        (BehindCommit, "left", -1),
    ):
        if not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name} any more: the mutation does nothing")
        setattr(owner, name, instead)
