"""The memory that one agent keeps for one rank: it outlives the rank's processes.

It has no name in any folder, unless ranks reach nothing without one (`nameless.py`).

Rules:

1. It ends with the agent. A rank that starts anew, or another rank in its place, gets other memory.
2. Copies come in pairs: two of the rank's own state, two of the state of the rank on another node whose copies it
   keeps, and two of the one whose copies it kept before. Memory to which nothing was written takes a descriptor alone.
"""

from pathlib import Path
from typing import Final

from taskd.runtime.folders.nameless import KeptMemory
from taskd.wire.kinds import LocalRank

_COPIES: Final = 6


class RankMemory:
    """Memory of one rank: for its positions, its set-up, its marks, and for copies of states.

    Raises:
        OSError: there is none.
    """

    def __init__(self, local_rank: LocalRank, folder: Path, *, named: bool = False) -> None:
        """`named`: it has names, in `folder`."""
        self._named = named
        self._all: list[KeptMemory] = []
        try:
            self.position, self.setup, self.marks = (
                self._make(f"{what}-{local_rank}", folder) for what in ("position", "setup", "marks")
            )
            self.copies_at = tuple(self._make(f"copy-{local_rank}-{number}", folder).path for number in range(_COPIES))
        except OSError:
            self.close()
            raise

    def close(self, *, holds_numbers: bool = False) -> None:
        """The kernel gives it back when no process has it mapped. With `holds_numbers` nothing else gets its paths."""
        for memory in self._all:
            memory.close(holds_number=holds_numbers)
        self._all.clear()

    def _make(self, name: str, folder: Path) -> KeptMemory:
        self._all.append(KeptMemory(name, folder, named=self._named))
        return self._all[-1]
