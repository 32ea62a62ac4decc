"""The copies that one rank of a node keeps: of its own state, and of those whose copies it was given.

Rules:

1. Two of each state. The older one is written over, or the one that is not whole; never the one that all ranks count
   on.
2. They belong to the rank's place on its node and outlive its processes; the agent removes them when the rank starts
   anew without a state, and when it ends itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskd.adaptors.training.copies.copy_file import CopyFile
from taskd.adaptors.training.copies.room import shortage
from taskd.wire.kinds import JobRank
from taskd.wire.state import StateCopy

_EACH: Final = 2


class CopyFolder:
    """The files `copy-<local rank>-<of>-<number>` of an agent's directory.

    Args:
        position: the rank's file of positions, `position-<local rank>`, beside which they are.
    """

    def __init__(self, position: Path) -> None:
        self._directory = position.parent
        self._prefix = f"copy-{position.name.rpartition('-')[2]}-"
        self._open: dict[Path, CopyFile] = {}

    def shortage(self, size_bytes: int, count: int, *, asked: bool) -> str:
        """Why there is no room for the first copies, `count` of which this node will hold; "" if there is."""
        begun = any(self._directory.glob(f"{self._prefix}*"))
        return "" if begun else shortage(self._directory, size_bytes, count, asked=asked)

    def whole(self) -> tuple[StateCopy, ...]:
        """Those that can be read."""
        found = {(head.of, head.step) for file in self._files() if (head := file.head()) is not None}
        return tuple(StateCopy(of=of, step=step) for of, step in sorted(found))

    def find(self, of: JobRank, step: int) -> CopyFile | None:
        """A whole copy of a rank's state of this step."""
        for file in self._files():
            head = file.head()
            if head is not None and (head.of, head.step) == (of, step):
                file.position = 0
                return file
        return None

    def room(self, of: JobRank, size_bytes: int, keep: int) -> CopyFile:
        """The file for the next copy of a rank's state, which is none of step `keep`. Raises `OSError`."""
        files = [self._file(self._directory / f"{self._prefix}{of}-{number}") for number in range(_EACH)]
        heads = [file.head() for file in files]
        steps = [-1 if head is None or head.of != of else head.step for head in heads]
        free = min(range(_EACH), key=lambda number: (steps[number] == keep >= 0, steps[number]))
        files[free].reserve(size_bytes)
        return files[free]

    def forget_after(self, step: int) -> None:
        """All ranks have gone back to this step, or stand at it: what came after it never was."""
        for file in self._files():
            head = file.head()
            if head is not None and head.step > step:
                file.erase()

    def remove(self) -> None:
        """Give the memory back."""
        for file in [*self._files()]:
            file.path.unlink(missing_ok=True)
        self._open.clear()

    def close(self) -> None:
        """Let go of the files in this process."""
        self._open.clear()

    def _files(self) -> Iterator[CopyFile]:
        for path in sorted(self._directory.glob(f"{self._prefix}*")):
            yield self._file(path)

    def _file(self, path: Path) -> CopyFile:
        if path not in self._open:
            self._open[path] = CopyFile(path)
        return self._open[path]
