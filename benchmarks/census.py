"""Repeated counts of processes' resources and of files, and the check that they have not grown.

Rules:

1. Some figures go up and down, so medians are compared: of the counts in the first tenth of a run, and in the last.
2. The records of a fault (journal, `faults/`, a line in the manager's log) grow with the faults, and with nothing else.
"""

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from taskd.runtime.agent.rankfiles import KEPT_BOXES

Counts = dict[str, float]

TEMPLATE: Final = b"taskd.python.template"
FILES: Final = "files"
RECORDS: Final = "records_per_fault"
SLACK: Final = {"rss_mb": (8.0, 0.03), "shm_mb": (1.0, 0.0), "sockets": (100.0, 0.5)}
"""Increase that counts as flat, in units or as a share: allocators keep some, strangers' connections come and go."""
_COUNTED_SLACK: Final = (2.0, 0.05)
RECORDS_SLACK: Final = (2.0, 0.5)


def holdings(pids: Iterable[int]) -> Counts:
    """Return the descriptors, threads and memory that these processes hold together, without any that has ended."""
    fds, threads, rss_kb = 0, 0, 0
    for pid in pids:
        process = Path("/proc") / str(pid)
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            if "VmRSS" in fields:  # else it has ended, and its parent has not collected its status yet
                fds += len(os.listdir(process / "fd"))
                threads += int(fields["Threads"])
                rss_kb += int(fields["VmRSS"].split()[0])
    return {"fds": fds, "threads": threads, "rss_mb": round(rss_kb / 1024, 1)}


def below(pid: int) -> list[int]:
    """Return a process and all of its descendants, zombies too."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def template(agent: int) -> int:
    """Return the process from which an agent's warm processes are forked: the oldest one with its command line."""
    found = []
    for pid in below(agent):
        with suppress(FileNotFoundError, ProcessLookupError):
            if TEMPLATE in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
                found.append((started, pid))
    return min(found)[1]


def sockets(pid: int) -> int:
    """Return the number of sockets of a process. A manager has one for each connection, ended ones included."""
    held = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held += os.readlink(link).startswith("socket:")
    return held


def files(run_dir: Path, agent: int) -> Counts:
    """Count the files below the run directory, and the agent's black boxes and shared memory.

    The folder `faults`, which has a file for each fault, is left out. Of the black boxes that are kept, only those
    beyond `KEPT_BOXES` count.
    """
    shared = [path for path in Path("/dev/shm").glob(f"taskd-{agent}-*/**/*") if path.is_file()]
    size_bytes = 0
    for link in Path(f"/proc/{agent}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(link).startswith("/memfd:taskd-"):
                shared.append(link)
    for path in shared:
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_blocks * 512
    found = Counter(path.parent.name for path in run_dir.rglob("*") if path.is_file())
    del found["faults"]
    found["boxes"] = max(0, found["boxes"] - KEPT_BOXES)
    return {"run_dir": found.total(), "shm": len(shared), "shm_mb": round(size_bytes / (1 << 20), 1)}


def records(run_dir: Path, log: Path) -> Counts:
    """Return the size of the records so far: journal, fault files and the manager's log."""
    told = run_dir / "default"
    return {
        "journal_kb": (told / "journal.jsonl").stat().st_size / 1024,
        "fault_files": len(list((told / "faults").glob("*"))),
        "manager_log_lines": log.read_bytes().count(b"\n"),
    }


def first_and_last(counted: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the medians of the first tenth and of the last one. A tenth has at least one count."""
    tenth = max(1, len(counted) // 10)
    sides = counted[:tenth], counted[-tenth:]
    return {key: [round(statistics.median(one[key] for one in side), 1) for side in sides] for key in counted[0]}


def for_each_fault(counted: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the growth of the records per fault, in the first tenth of a run and in the last one.

    Each count has the number of `faults` so far.
    """
    tenth = max(1, (len(counted) - 1) // 10)
    spans = (counted[0], counted[tenth]), (counted[-1 - tenth], counted[-1])
    keys = counted[0].keys() - {"faults"}
    return {
        key: [round((after[key] - before[key]) / (after["faults"] - before["faults"]), 1) for before, after in spans]
        for key in sorted(keys)
    }


def grown(figures: Mapping[str, Any]) -> list[str]:
    """Return a text for each figure that is not flat. `figures` has `[first, last]` pairs in groups, by name."""
    found = []
    for name, pair in figures.items():
        if isinstance(pair, Mapping):
            slack = RECORDS_SLACK if name == RECORDS else None
            found += [f"{name} {text}" for text in _grown(pair, slack)]
    return found


def _grown(pairs: Mapping[str, Any], slack: tuple[float, float] | None) -> list[str]:
    found = []
    for key, (first, last) in pairs.items():
        more, share = slack or SLACK.get(key, _COUNTED_SLACK)
        if last > first + max(more, share * first):
            found.append(f"{key} {first:g} -> {last:g}")
    return found
