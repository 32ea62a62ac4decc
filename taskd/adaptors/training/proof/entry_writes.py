"""Files and folders that a training function empties, removes or renames at each entry, by Python's audit events.

The self-check enters the function once more in a healthy job. The function must not do then what only a fault may
repeat.

Rules:

1. Events of the thread that trains count, from the entry into the function until its first commit. Opening a file for
   appending or reading is harmless, and so is making a folder.
2. Files of the interpreter's and of compilers' caches do not count.
"""

import threading
from typing import Final

from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.training.proof.torch_writer import TorchWriter
from taskd.runtime.worker.file_events import VERBS, WRITES, is_compilers, listen, stop_listening

_HARMLESS: Final = (WRITES, VERBS["os.mkdir"])


class EntryWrites:
    """First file or folder that a training function empties, removes or renames as it is entered.

    Attributes:
        found: `file:line`, a verb and a path; "" if there is nothing.
    """

    def __init__(self) -> None:
        self.found = ""
        self._thread = threading.get_ident()
        self._torch = TorchWriter(self._note)

    def start(self) -> None:
        """Start to watch: the function is called."""
        self.stop()
        listen(self._note)
        self._torch.start()

    def stop(self) -> None:
        """Stop watching: the function's first step is committed, or it was left."""
        stop_listening(self._note)
        self._torch.stop()

    def _note(self, verb: str, path: str) -> None:
        if self.found or verb in _HARMLESS or threading.get_ident() != self._thread:
            return
        if not is_compilers():
            self.stop()  # the search for the line may raise events
            self.found = f"{script_line()} {verb} {path} each time it is entered"
