"""The verdict of a job's self-check: exact, not exact, or unproven, with the steps or the reason.

Its ranks write it into the job's folder; `taskd blackbox` and `taskd doctor` show it.
"""

import os
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from taskd.runtime.folders.regular import open_record

SELF_CHECK: Final = "self-check.json"
_MOST_BYTES: Final = 1 << 20


class CheckOutcome(Enum):
    """The possible results of a self-check. The value begins the verdict's text."""

    EXACT = "exact: proven"
    UNPROVEN = "unproven"
    NOT_EXACT = "not exact"


class CheckVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one script with its arguments and number of ranks.

    Attributes:
        steps: steps that were done twice.
        reason: why the training is not exact, or why nothing is proven.
        of: a digest of the script's text, its arguments and the number of ranks.
        ahead: how many batches the script fetches ahead of its steps, by the name of the loader.
        section: number of the training function that this was found in; the next ones may fetch otherwise.
    """

    outcome: CheckOutcome
    steps: tuple[int, ...] = ()
    reason: str = ""
    of: str = ""
    ahead: dict[str, int] = {}
    section: int = 0

    @property
    def text(self) -> str:
        """One line for logs and pages."""
        if self.outcome is CheckOutcome.EXACT:
            known = f"{self.outcome.value} at step{'s' * (len(self.steps) > 1)} {', '.join(map(str, self.steps))}"
            again = [f"a batch of {name!r} is fetched ahead, and handed out again" for name in self.ahead]
            reason = "; ".join(filter(None, (self.reason, *again)))
            return f"{known} ({reason})" if reason else known
        return f"{self.outcome.value}: {self.reason}"


def read_verdict(folder: Path, since_unix_s: float = 0.0) -> CheckVerdict | None:
    """Return the verdict in a job's folder; None if none that was written or confirmed since then can be read."""
    try:
        with open_record(folder / SELF_CHECK) as file:
            if os.fstat(file.fileno()).st_mtime < since_unix_s:
                return None
            return msgspec.json.decode(file.read(_MOST_BYTES), type=CheckVerdict)
    except (OSError, ValueError, RecursionError):
        return None
