"""What a job has found out about itself: exact, not exact, or unproven, with the steps or the reason.

Rules:

1. All ranks come to the same verdict: each word of it has been agreed on.
2. It is kept in the job's folder on each node, so that the next start need not prove it again. It counts for the text
   of the script and of the user's modules that it has imported, its arguments, and the number of ranks.
"""

import hashlib
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import torch

from taskd.adaptors.groups.sites import is_users

_NAME: Final = "self-check.json"
_MOST_BYTES: Final = 1 << 24


class CheckOutcome(Enum):
    """What a self-check can come to. The value begins its text."""

    EXACT = "exact: proven"
    UNPROVEN = "unproven"
    NOT_EXACT = "not exact"


class CheckVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one script, with these arguments and so many ranks. `steps` were done twice."""

    outcome: CheckOutcome
    steps: tuple[int, ...] = ()
    reason: str = ""
    of: str = ""

    @property
    def text(self) -> str:
        """One line for logs and pages."""
        if self.outcome is CheckOutcome.EXACT:
            known = f"{self.outcome.value} at step{'s' * (len(self.steps) > 1)} {', '.join(map(str, self.steps))}"
            return f"{known} ({self.reason})" if self.reason else known
        return f"{self.outcome.value}: {self.reason}"


class VerdictFile:
    """Where the processes of a node keep it: in the job's folder."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._path = folder / _NAME
        self._of = _identity(world_size)

    def read(self) -> CheckVerdict | None:
        """Return what is known of this very script; None if nothing is."""
        try:
            known = msgspec.json.decode(self._path.read_bytes(), type=CheckVerdict)
        except (OSError, msgspec.DecodeError):
            return None
        return known if known.of == self._of else None

    def write(self, verdict: CheckVerdict) -> None:
        """Keep it. Whatever fails here costs another proof, and no more."""
        new = self._path.with_name(f"{_NAME}.{os.getpid()}")
        try:
            new.write_bytes(msgspec.json.encode(msgspec.structs.replace(verdict, of=self._of)))
            new.replace(self._path)
        except OSError:
            new.unlink(missing_ok=True)


def _identity(world_size: int) -> str:
    """A digest of all that a verdict depends on, as far as it has a text."""
    found = hashlib.blake2b(digest_size=16)
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    for name in sorted(name for name in files if name and is_users(name)):
        found.update(name.encode(errors="surrogateescape"))
        try:
            with open(name, "rb") as file:
                found.update(file.read(_MOST_BYTES))
        except OSError:
            found.update(b"?")
    found.update(repr((sys.argv, torch.__version__, world_size)).encode())
    return found.hexdigest()
