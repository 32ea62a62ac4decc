"""The verdict of a self-check, kept from one start of a job to the next.

Rules:

1. All ranks come to the same verdict: each word of it has been agreed on.
2. It lies in the job's folder on each node, so that the next start need not prove it again. It counts for the text of
   the script and of the user's modules that it has imported, its arguments, and the number of ranks.
"""

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
import torch

from taskd.adaptors.groups.sites import users_files
from taskd.runtime.records.selfcheck import SELF_CHECK, CheckVerdict, read_verdict

_MOST_BYTES: Final = 1 << 24


class VerdictFile:
    """The file in which the processes of a node keep the verdict."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._folder = folder
        self._of = _identity(world_size)

    def read(self) -> CheckVerdict | None:
        """Return the verdict on this very script, and confirm it for this start; None if there is none."""
        known = read_verdict(self._folder)
        if known is None or known.of != self._of:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / SELF_CHECK)
        return known

    def write(self, verdict: CheckVerdict) -> None:
        """Keep the verdict. If that fails, the next start proves it again."""
        new = self._folder / f"{SELF_CHECK}.{os.getpid()}"
        try:
            new.write_bytes(msgspec.json.encode(msgspec.structs.replace(verdict, of=self._of)))
            new.replace(self._folder / SELF_CHECK)
        except OSError:
            new.unlink(missing_ok=True)


def _identity(world_size: int) -> str:
    """A digest of all that a verdict depends on, as far as it has a text."""
    found = hashlib.blake2b(digest_size=16)
    for name in users_files():
        found.update(name.encode(errors="surrogateescape"))
        try:
            with open(name, "rb") as file:
                found.update(file.read(_MOST_BYTES))
        except OSError:
            found.update(b"?")
    found.update(repr((sys.argv, torch.__version__, world_size)).encode())
    return found.hexdigest()
