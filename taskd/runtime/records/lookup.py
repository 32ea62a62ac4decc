"""A process inspected from outside: its facts in /proc, and the place of its black box.

Rules:

1. A process may end at any moment, and may be another user's: unreadable facts are None or empty.
2. A rank is identified by the box that it has mapped. Its environment does not identify it. A warm process took its
   rank after its start, and a child inherits the variables of its parent.
3. A process in a container is inspected from inside its own file system, and may have another pid there.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskd.errors import RecordError
from taskd.runtime.folders.ownfolder import owner_of_folder
from taskd.runtime.folders.rank_folders import parents

_BOX: Final = re.compile(r"box-\d+-\d+")
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}
_FIELD_STATE, _FIELD_THREADS, _FIELD_STARTED, _FIELD_RSS = 0, 17, 19, 21
"""Fields of /proc/PID/stat, counted from behind the command's name."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process. `wchan` is where in the kernel its main thread sleeps, "" if it does not or must not be known."""

    pid: int
    command: str
    state: str
    wchan: str
    threads: int
    rss_bytes: int
    started_ns: int
    """Start on the monotonic clock, some 10 ms exact."""


def view(pid: int) -> ProcessView | None:
    """Return the facts about a process; None if there is none."""
    try:
        command, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    fields, wchan = rest.split(), _read(pid, "wchan")
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()  # the field counts this too
    return ProcessView(
        pid=pid,
        command=command.partition("(")[2],
        state=_STATES.get(fields[_FIELD_STATE], fields[_FIELD_STATE]),
        wchan="" if wchan == "0" else wchan,
        threads=int(fields[_FIELD_THREADS]),
        rss_bytes=int(fields[_FIELD_RSS]) * os.sysconf("SC_PAGE_SIZE"),
        started_ns=int(fields[_FIELD_STARTED]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - asleep_ns,
    )


def namespaced_pids(pid: int) -> tuple[int, ...]:
    """Return a process's pids, in our namespace first and in its own last. Empty if there is none."""
    lines = (line for line in _read(pid, "status").splitlines() if line.startswith("NSpid:"))
    return tuple(int(number) for number in next(lines, "").split()[1:])


def mapped_boxes(pid: int) -> list[Path]:
    """Return the files that a process has mapped and that may be black boxes.

    Raises `RecordError` if its mappings cannot be read.
    """
    root = Path("/") if _same_mounts(pid) else Path(f"/proc/{pid}/root")
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        raise RecordError(f"found no process {pid}; look for the job's record: taskd blackbox RUN_DIR") from None
    except ProcessLookupError:
        raise RecordError(f"process {pid} has just ended; look for its box: taskd blackbox RUN_DIR") from None
    except PermissionError:
        owner = next((line.split()[1] for line in _read(pid, "status").splitlines() if line.startswith("Uid:")), "?")
        raise RecordError(
            f"process {pid} belongs to user {owner}, and this is user {os.getuid()}; run it as that user"
        ) from None
    paths = dict.fromkeys(line.split(None, 5)[5] for line in lines if line.count(" ") >= 5 and "/" in line)
    return [root / path.lstrip("/") for path in paths if _BOX.fullmatch(Path(path).name)]


def agents_boxes() -> list[Path]:
    """Return the boxes in the directories of this user's agents on this machine. Those of other users are left out."""
    own = (one for parent in parents() for one in parent.glob("taskd-*-*") if owner_of_folder(one) == os.geteuid())
    return sorted(box for directory in own for box in directory.glob("box-*"))


def _same_mounts(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return True


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
