"""Memory that one agent keeps for one rank. It outlives the rank's processes.

It has no name in any folder, unless ranks can reach only memory with a name (`nameless.py`).

Rules:

1. It ends with the agent. A rank that starts anew, or another rank in its place, gets other memory.
2. Copies come in pairs. Two hold the rank's own state, and two the state of the rank on another node whose copies it
   keeps. Two more hold the state of the rank whose copies it kept before. Unused memory costs only a descriptor.
"""

from pathlib import Path
from typing import Final

from taskd.runtime.folders.nameless import KeptMemory
from taskd.wire.kinds import LocalRank

_COPIES: Final = 6


class RankMemory:
    """Memory of one rank: for its positions, its set-up, its marks, and for copies of states.

    Raises:
        OSError: no memory can be had.
    """

    def __init__(self, local_rank: LocalRank, folder: Path, *, named: bool = False) -> None:
        """Make the memory. `named`: it has names, in `folder`."""
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
        """Close the memory. The kernel frees it when no process has it mapped any more.

        With `holds_numbers` no other file gets its paths.
        """
        for memory in self._all:
            memory.close(holds_number=holds_numbers)
        self._all.clear()

    def _make(self, name: str, folder: Path) -> KeptMemory:
        self._all.append(KeptMemory(name, folder, named=self._named))
        return self._all[-1]
