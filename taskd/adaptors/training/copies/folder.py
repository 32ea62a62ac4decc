"""The copies that one rank of a node keeps: of its own state, and of other ranks' states that were sent to it.

Rules:

1. There are two copies of each state, or of a rank's position if another rank of the node copies the state. A new copy
   overwrites the older one, or the one that is not whole. It never overwrites the copy that all ranks count on.
2. Their memory belongs to the rank's place on its node and outlives its processes. The agent gives it back when the
   rank starts anew without a state, and when the agent itself ends.
3. The first two pieces of memory are for the rank's own state, and each further pair for the state of another rank. The
   first copy of another rank gets a pair without a copy that all ranks count on.
4. The agent's memory has no limit of its own. So the free memory is checked before the first copies, and whenever a
   copy must grow. The states of a node's ranks mostly grow in the same step, so there must be enough memory for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from taskd.adaptors.training.copies.copy_file import CopyFile, CopyHead
from taskd.adaptors.training.copies.room import expect_memory, nowhere, shortage
from taskd.wire.kinds import JobRank
from taskd.wire.state import StateCopy

_EACH: Final = 2


class CopyFolder:
    """The copies of one rank.

    Args:
        paths: paths of the memory that the agent keeps for them.
        own: the rank.
        ranks: number of ranks on its node that copy a state of this size.
        asked: whether the script has requested copies.
        section: number of the resilient function. Copies of another one are ignored.
    """

    def __init__(
        self, paths: Sequence[Path], own: JobRank, ranks: int = 1, *, asked: bool = True, section: int = 0
    ) -> None:
        self._ranks = ranks
        self._pairs = [tuple(paths[at : at + _EACH]) for at in range(0, len(paths), _EACH)]
        self._own, self.asked = own, asked
        self._section = section
        self._known_bytes = 0
        """Size of copies for which the memory was checked before the first one."""
        self._open: dict[Path, CopyFile] = {}

    def shortage(self, size_bytes: int, each: int) -> str:
        """Return why there is no room for the first copies, `each` of every rank of this node; "" if there is."""
        if any(self._files()):
            return ""
        self._known_bytes = size_bytes
        return shortage(self._pairs[0][0], size_bytes, each * self._ranks, asked=self.asked)

    def whole(self) -> tuple[StateCopy, ...]:
        """Return the copies that can be read."""
        heads = (self._head(file) for file in self._files())
        found = {(head.of, head.step, head.place) for head in heads if head is not None}
        return tuple(StateCopy(of=of, step=step, place=place) for of, step, place in sorted(found))

    def _head(self, file: CopyFile) -> CopyHead | None:
        head = file.head()
        return head if head is not None and head.section == self._section else None

    def expect(self, ranks: int) -> None:
        """Set the number of ranks on this node that copy a state of this size. All of them need memory."""
        self._ranks = ranks

    def has_own(self) -> bool:
        """Return whether a copy is of a state that differs between replicas."""
        return any(head.own for file in self._files() if (head := self._head(file)) is not None)

    def find(self, of: JobRank, step: int, *, place: bool = False) -> CopyFile | None:
        """Return a whole copy of a rank's state of this step; with `place`, of its data position only."""
        for file in self._files():
            head = self._head(file)
            if head is not None and (head.of, head.step, head.place) == (of, step, place):
                file.position = 0
                return file
        return None

    def room(self, of: JobRank, size_bytes: int, keep: int) -> CopyFile:
        """Return the file for the next copy of a rank's state, not the one of step `keep`. Raises `OSError`."""
        files = [self._file(path) for path in self._pair(of, keep)]
        heads = [self._head(file) for file in files]
        steps = [-1 if head is None or head.of != of else head.step for head in heads]
        free = min(range(_EACH), key=lambda number: (steps[number] == keep >= 0, steps[number]))
        growth_bytes = files[free].growth(size_bytes)
        if growth_bytes:
            ranks = 1 if size_bytes <= self._known_bytes else self._ranks
            expect_memory(growth_bytes * ranks, asked=self.asked)
        files[free].reserve(size_bytes)
        return files[free]

    @property
    def size_bytes(self) -> int:
        """Size of all copies together."""
        return sum(file.size_bytes for file in self._files())

    def forget_after(self, step: int) -> None:
        """Erase the copies of later steps, because all ranks have gone back to this step or are at it."""
        for file in self._files():
            head = file.head()
            if head is not None and head.step > step:
                file.erase()

    def remove(self) -> None:
        """Give the memory back."""
        for file in self._files():
            file.remove()
        self._open.clear()

    def close(self) -> None:
        """Release the files in this process."""
        self._open.clear()

    def _files(self) -> Iterator[CopyFile]:
        for path in (path for pair in self._pairs for path in pair):
            if path in self._open or _is_begun(path):
                yield self._file(path)

    def _pair(self, of: JobRank, keep: int) -> tuple[Path, ...]:
        """Return the paths of the memory for copies of this rank's state. Raises `OSError`."""
        if of == self._own:
            return self._pairs[0]
        held = {pair: [file.head() for path in pair if (file := self._known(path)) is not None] for pair in self._pairs}
        theirs = self._pairs[1:]
        known = (pair for pair in theirs if any(head is not None and head.of == of for head in held[pair]))
        counted_on = {pair for pair in theirs if any(head is not None and head.step == keep for head in held[pair])}
        spare = (pair for pair in theirs if pair not in counted_on)
        return next(known, None) or next(spare, theirs[-1])

    def _known(self, path: Path) -> CopyFile | None:
        return self._file(path) if path in self._open or _is_begun(path) else None

    def _file(self, path: Path) -> CopyFile:
        if path not in self._open:
            self._open[path] = CopyFile(path)
        return self._open[path]


class Incoming:
    """Room for a copy from another node, in memory that does not hold the copy of step `keep`.

    Attributes:
        file: file of the copy; None before anything has arrived.
        missing: why there is no room for it. It is read and dropped all the same, to not hold up its sender.
    """

    def __init__(self, folder: CopyFolder, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self.file: CopyFile | None = None
        self.missing = ""

    def room(self, theirs: CopyHead) -> memoryview:
        """Return the memory for the copy."""
        try:
            self.file = self._folder.room(theirs.of, theirs.size_bytes, self._keep)
        except OSError as error:
            self.missing = error.strerror or str(error)
            return nowhere(theirs.size_bytes)
        return self.file.bytes(theirs.size_bytes)


def _is_begun(path: Path) -> bool:
    """Return whether the memory is in use: not if it was given back, or if the agent is gone."""
    with suppress(OSError):
        return path.stat().st_blocks > 0
    return False
