"""What befalls the copies of a rank together with its process."""

import os
from pathlib import Path

from taskd.adaptors.training.copies.copy_file import CopyFile
from tests.scripts import diary

_POSITION = Path(os.environ.get("TASKD_POSITION", "position-0"))
_PREFIX = _POSITION.name.replace("position", "copy")


def lose_copies() -> None:
    """What this rank's place on its node can read is gone, as with the node."""
    for path in _POSITION.parent.glob(f"{_PREFIX}-*"):
        path.unlink()


def flip_bits() -> None:
    """One in each copy of this rank's own state on its node."""
    for path in _POSITION.parent.glob(f"{_PREFIX}-{diary.RANK}-*"):
        file = CopyFile(path)
        head = file.head()
        if head is not None:
            file.bytes(head.size_bytes)[-100] ^= 1
