"""Folder with the evidence of a job's faults, one file for each, no larger than a reader accepts.

Rules:

1. A file holds the evidence of the ranks that the diagnosis names, and of as many others as fit. It gives the number of
   omitted ranks. A reader accepts no more (`faultfile.py`), and reports of 100,000 ranks take 200 MB.
2. The newest `MOST_FILES` stay, up to `MOST_BYTES` in all. The journal holds the diagnoses of all faults.
"""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.facts import flat
from taskd.core.diagnosis.findings import Diagnosis
from taskd.runtime.folders.ownfolder import OwnFolder
from taskd.wire.kinds import JobRank

MOST_FILES: Final = 10_000
"""Most faults that a reader reports (`timeline.py`)."""
MOST_BYTES: Final = 4 << 30
MOST_EVIDENCE_BYTES: Final = 48 << 20
"""Most evidence in one file. A reader accepts 64 MiB, and the file holds the diagnosis too."""
_MOST_DIGITS: Final = 9
_SUFFIX: Final = ".json"


class FaultFolder:
    """Folder below that of a job, made when there is something to keep. `newest` is the highest number of a file."""

    def __init__(self, job: OwnFolder, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        """Read the folder if it exists. Raises `OSError` if it cannot be read."""
        self._job = job
        self._path: Path = job.path / "faults"
        self._most_files, self._most_bytes = most_files, most_bytes
        self._sizes: dict[int, int] = {}
        with suppress(FileNotFoundError), closing(OwnFolder(self._path, job, make=False)) as folder:
            for name in folder.names():
                stem = name.removesuffix(_SUFFIX)
                if stem.isdecimal() and stem.isascii() and len(stem) <= _MOST_DIGITS:
                    self._sizes[int(stem)] = folder.size(name)
        self.newest = max(self._sizes, default=0)

    def write(
        self, number: int, head: Mapping[str, object], diagnosis: Diagnosis, evidence: Mapping[JobRank, Evidence]
    ) -> int:
        """Write a fault's evidence, in place of its former file, and return the number of older files removed for it.

        Raises `OSError`.
        """
        content = msgspec.json.encode({**head, **_fitting(diagnosis, evidence)})
        cost = 0
        with closing(OwnFolder(self._path, self._job)) as folder:
            folder.write(_name(number), content)
            self._sizes.pop(number, None)
            self._sizes[number] = len(content)
            while len(self._sizes) > self._most_files or sum(self._sizes.values()) > self._most_bytes:
                oldest = min(self._sizes)
                if oldest == number:
                    break
                folder.remove(_name(oldest))
                del self._sizes[oldest]
                cost += 1
        return cost


def _name(number: int) -> str:
    return f"{number:04d}{_SUFFIX}"


def _fitting(diagnosis: Diagnosis, evidence: Mapping[JobRank, Evidence]) -> dict[str, object]:
    named = {*diagnosis.culprits, *(fact.rank for fact in diagnosis.facts)}
    kept: dict[JobRank, msgspec.Raw] = {}
    left = MOST_EVIDENCE_BYTES
    for rank in sorted(evidence, key=lambda rank: (rank not in named, rank)):
        raw = msgspec.json.encode(flat(evidence[rank]))
        left -= len(raw)
        if left < 0:
            break
        kept[rank] = msgspec.Raw(raw)
    found: dict[str, object] = {"evidence": {str(rank): raw for rank, raw in sorted(kept.items())}}
    return found if len(kept) == len(evidence) else {**found, "omitted": len(evidence) - len(kept)}
