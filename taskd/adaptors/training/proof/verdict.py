"""Verdict of a self-check, kept from one start of a job to the next.

Rules:

1. All ranks come to the same verdict: they have agreed on each word of it.
2. It lies in the job's folder on each node: the next start need not prove it again. It is valid for the text of the
   script and of the user's modules that it has imported, its arguments, and the number of ranks.
3. A node that is new at a full restart has no such file. Ranks on the other nodes publish the verdict in the store of
   the default group as they begin. A rank without a file reads it there at its first commit. By then all have begun.
"""

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch.distributed import Store

from taskd.adaptors.groups.sites import users_files
from taskd.runtime.folders.jobfolder import open_folder
from taskd.runtime.records.selfcheck import SELF_CHECK, CheckVerdict, read_verdict

_MOST_BYTES: Final = 1 << 24


class VerdictFile:
    """File in which the processes of a node keep the verdict. `folder` is the job's folder."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._folder = folder
        self._of = _identity(world_size)

    def read(self) -> CheckVerdict | None:
        """Return the verdict on this exact script, and confirm it for this start; None if there is none."""
        known = read_verdict(self._folder)
        if known is None or known.of != self._of:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / SELF_CHECK)
        return known

    def write(self, verdict: CheckVerdict) -> None:
        """Keep the verdict. Make the job's folder if needed: on a node without a manager there is none yet.

        If that fails, the next start proves it again.
        """
        with contextlib.suppress(OSError), contextlib.closing(open_folder(self._folder)) as folder:
            folder.write(SELF_CHECK, self._encoded(verdict))

    def publish(self, verdict: CheckVerdict, store: Store, key: str) -> None:
        """Publish the verdict for ranks on nodes without a file.

        Raises:
            RuntimeError: the store has failed.
        """
        store.set(key, self._encoded(verdict).decode())

    def look(self, store: Store, key: str) -> CheckVerdict | None:
        """Return the published verdict on this exact script, and keep it on this node; None if there is none.

        Raises:
            RuntimeError: the store has failed.
            msgspec.DecodeError: the published value is no verdict.
        """
        if not store.check([key]):
            return None
        known = msgspec.json.decode(store.get(key), type=CheckVerdict)
        if known.of != self._of:
            return None
        self.write(known)
        return known

    def _encoded(self, verdict: CheckVerdict) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(verdict, of=self._of))


def _identity(world_size: int) -> str:
    """Return a digest of everything that a verdict depends on, as far as it has a text."""
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
