"""The plan of a job of `tests.faults`, and the notes by which its ranks report their positions to the player.

Rules:

1. The player gives the plan to all ranks as one argument. They answer by files in its folder.
2. A victim leaves the note `injected-RANK` right before it fails, with the time on CLOCK_MONOTONIC, which is the same
   for all processes of the machine. A process that finds that note is a successor, and does not fail again.
"""

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """Plan of one job.

    Attributes:
        fault: a name of `tests.faults.injections`; "": the rank only reports its arrival at that step.
        victims: ranks that fail.
        at: the step in which they do, the first is 1.
        steps: steps of the whole training.
        settled: until that step, steps take `quick_ms`, and from then on `step_ms`.
        unproven_s: the job's `TASKD_HANG_UNPROVEN_S`; 0 leaves the default.
        cgroup: a file to write a pid to, which puts that process under a cgroup's rule.
    """

    folder: str
    fault: str
    victims: tuple[int, ...]
    at: int
    steps: int
    settled: int
    quick_ms: float
    step_ms: float
    cgroup: str = ""
    tells_loss: bool = False
    unproven_s: float = 0.0

    @classmethod
    def read(cls, text: str) -> "Plan":
        """Return the plan in a text of `text`."""
        fields = json.loads(text)
        return cls(**{**fields, "victims": tuple(fields["victims"])})

    @property
    def text(self) -> str:
        """The plan as JSON, for `read`."""
        return json.dumps(dataclasses.asdict(self))

    def path(self, name: str) -> Path:
        """Return the path of a file of the job."""
        return Path(self.folder) / name

    def note(self, name: str, text: str) -> None:
        """Write a file atomically."""
        unfinished = self.path(f".{name}.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.rename(self.path(name))

    def has_struck(self, rank: int) -> bool:
        """Return whether this rank's fault has occurred."""
        return self.path(f"injected-{rank}").exists()

    def strike(self, name: object) -> None:
        """Record that the fault comes now."""
        self.note(f"injected-{name}", repr(time.monotonic()))

    def struck_s(self) -> tuple[float, float] | None:
        """Return the times of the first and the last fault; None as long as one is missing."""
        names = self.victims if self.fault else ("player",)
        notes = [self.path(f"injected-{name}") for name in names]
        if not all(note.exists() for note in notes):
            return None
        times = [float(note.read_text()) for note in notes]
        return min(times), max(times)
