"""What a training function empties, removes or renames each time it is entered, by audit events of Python's.

The self-check enters the function once more in a healthy job: it must not do there what only a fault may do.

Rules:

1. Events of the thread that trains count, from the entry into the function until its first commit. What is opened for
   appending or reading, and folders that are made, are harmless.
2. Files of the interpreter's and of compilers' caches do not count.
"""

import threading
from typing import Final

from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.training.proof.torch_writer import TorchWriter
from taskd.runtime.worker.file_events import VERBS, WRITES, is_compilers, listen, stop_listening

_HARMLESS: Final = (WRITES, VERBS["os.mkdir"])


class EntryWrites:
    """The first thing that a training function empties, removes or renames as it is entered.

    Attributes:
        found: `file:line`, a verb and a path; "" if there is nothing.
    """

    def __init__(self) -> None:
        self.found = ""
        self._thread = threading.get_ident()
        self._torch = TorchWriter(self._note)

    def start(self) -> None:
        """The function is called."""
        self.stop()
        listen(self._note)
        self._torch.start()

    def stop(self) -> None:
        """Its first step is committed, or it was left."""
        stop_listening(self._note)
        self._torch.stop()

    def _note(self, verb: str, path: str) -> None:
        if self.found or verb in _HARMLESS or threading.get_ident() != self._thread:
            return
        if not is_compilers():
            self.stop()  # to look for the line may raise events
            self.found = f"{script_line()} {verb} {path} each time it is entered"
