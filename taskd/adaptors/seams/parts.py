"""The table of seams, part by part: the process that compares each part, and the job's behaviour without it.

Rules:

1. A part that does not fit is not used at all: torch's own code stays in its place.
2. No code checks a version. A torch newer than all tested ones is compared by its seams.
3. `taskd doctor` and a job report the same of a torch, since both reports come from here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from taskd.adaptors.seams.launcher import LAUNCHER
from taskd.adaptors.seams.native import FREEING, SEEING
from taskd.adaptors.seams.seam import Choice, Line, Look, torch_version, verify
from taskd.adaptors.seams.sharded import PIPELINES, SHARDED
from taskd.adaptors.seams.worker import BUILDS, CHECKPOINT, WORKER
from taskd.errors import PatchError

OLDEST: Final = (2, 6)
NEWEST: Final = (2, 15)
"""The oldest and the newest minor version of torch that fit; see docs/torch-versions.md for the tested ones."""


@dataclass(frozen=True, eq=False)
class Part:
    """One part of the table; `otherwise` is a job's behaviour if a seam of the part does not fit."""

    name: str
    table: Sequence[Line]
    otherwise: str

    def misfit(self, look: Look | None = None) -> str:
        """Return the misfit and its consequence, in a sentence each; "" if all fits. Default: the installed torch."""
        return _of_installed(self) if look is None else _misfit(self, look)


def _misfit(part: Part, look: Look | None) -> str:
    try:
        verify(part.table, look)
    except PatchError as error:
        return f"{error}. {part.otherwise}"
    return ""


@cache
def _of_installed(part: Part) -> str:
    misfit = _misfit(part, None)
    if not misfit:
        for choice in part.table:
            if isinstance(choice, Choice):
                choice.find()  # cached too: a standby compares ahead of its rank's start
    return misfit


IN_LAUNCHER: Final = Part("launcher", LAUNCHER, "torchrun is left as it was")
IN_WORKER: Final = Part(
    "worker", WORKER, "Process groups are left as torch makes them: at a fault all processes start anew"
)
IN_CHECKPOINT: Final = Part("checkpoints", CHECKPOINT, "No checkpoint of taskd's own is written or read")
IN_SHARDED: Final = Part(
    "FSDP2", SHARDED, "A model that FSDP2 has sharded is not recovered in place: at a fault all processes start anew"
)
IN_PIPELINES: Final = Part(
    "pipelines", PIPELINES, "A stage of a pipeline is not recovered in place: at a fault all processes start anew"
)
IN_BUILDS: Final = Part(
    "locks of builds", BUILDS, "A lock that a killed rank leaves in a folder of extensions stays until it is removed"
)
FOR_FREEING: Final = Part(
    "freeing from gloo", FREEING, "A rank is freed from a gloo collective by the kernel's list of its sockets instead"
)
FOR_SEEING: Final = Part(
    "seeing gloo", SEEING, "The black box does not know gloo's collectives: a hang in one is found by its length alone"
)
IN_RANK: Final = (IN_WORKER, FOR_FREEING, FOR_SEEING)
"""Parts that a rank compares at its start; a standby has done so ahead."""
PARTS: Final = (IN_LAUNCHER, IN_WORKER, FOR_FREEING, FOR_SEEING, IN_SHARDED, IN_PIPELINES, IN_BUILDS, IN_CHECKPOINT)


def misfits(look: Look | None = None) -> Iterator[tuple[Part, str]]:
    """Yield each part that does not fit, and its sentences."""
    for part in PARTS:
        misfit = part.misfit(look)
        if misfit:
            yield part, misfit


def minor(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version of torch; (0, 0) for one without numbers."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def newer(version: str | None = None) -> str:
    """Return a note if this torch, by default the installed one, is newer than all tested ones; else ""."""
    version = version or torch_version()
    if minor(version) <= NEWEST:
        return ""
    tried = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
    return f"torch {version} is newer than those that were tried ({tried}): it is compared seam by seam"
