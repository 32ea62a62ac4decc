"""The timeline of one job, from its run directory: journal, faults and kept black boxes, also of a job long dead.

Rules:

1. No content can stop the reading: a damaged line is counted and skipped, a damaged file is named. No amount can stop
   it either: surplus is left out, the oldest first, and `omitted` names it.
2. Jobs of one name share a journal. The last one counts: it begins with the first manager after a `stopped`.
3. In a journal without diagnoses, from an older taskd, each recovery counts as a fault.
"""

import heapq
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from taskd.errors import RecordError
from taskd.runtime.folders.regular import open_record
from taskd.runtime.records.entries import DiagnosisEntry, DirectiveEntry, Ended, Processes, RecoveryEntry
from taskd.runtime.records.selfcheck import CheckVerdict, read_verdict
from taskd.wire.bounds import LONGEST_S, NAME_CHARS
from taskd.wire.kinds import JobRank, NodeRank

JOURNAL: Final = "journal.jsonl"
OLD_JOURNAL: Final = "journal.old.jsonl"
"""Older part of a journal that was full."""
FAULTS: Final = "faults"
BOXES: Final = "boxes"
JOURNAL_BYTES: Final = 64 << 20
"""Number of the newest bytes of a journal that are read."""
_LINE_BYTES: Final = 16 << 20
_MOST_FAULTS: Final = 10_000
_MOST_RECOVERIES: Final = 100
_MOST_JOBS: Final = 1000
_MOST_BOXES: Final = 256
_KEPT_BOX: Final = re.compile(r"rank-(\d{1,9})-incarnation-(\d{1,18})\.box", re.ASCII)


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """One fault, or a planned change of the world.

    Attributes:
        number: as the manager counts; without diagnoses, as its recoveries come; 0 if nothing had failed.
        unix_s: when it began, for a hang the last progress; None if that is not known.
        changes: how many earlier diagnoses of it were replaced.
        recoveries: its recoveries so far. Empty: there was none, or it is under way.
        closed: the job ended afterwards, or another manager took over.
    """

    number: int
    manager: int
    unix_s: float | None = None
    diagnosis: DiagnosisEntry | None = None
    changes: int = 0
    recoveries: tuple[RecoveryEntry, ...] = ()
    closed: bool = False

    @property
    def step(self) -> int | None:
        """Newest committed step when the fault struck."""
        steps = [one.step for one in (self.diagnosis, *self.recoveries) if one is not None]
        return next((step for step in steps if step is not None), None)

    @property
    def culprits(self) -> tuple[JobRank, ...]:
        """Culprits by the diagnosis; without one, the ranks that were lost."""
        if self.diagnosis is not None:
            return self.diagnosis.culprits
        ranks = {JobRank(int(rank)) for one in self.recoveries for rank in one.causes if rank.isdecimal()}
        return tuple(sorted(ranks))

    @property
    def total_ms(self) -> float | None:
        """Time of all its recoveries in ms, each until its next committed step; None if none was completed so."""
        totals = [one.phases_ms["total"] for one in self.recoveries if "total" in one.phases_ms]
        return round(sum(totals), 3) if totals else None


@dataclass(frozen=True, slots=True)
class KeptBox:
    """Black box of a process that has died."""

    file: str
    rank: JobRank
    incarnation: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timeline of one job. Faults and kept boxes come with the newest last.

    `pids`: by rank, as managers saw them last. `managers`: how many it has had. `phase`: purpose of the newest
    directive. `omitted`: unread parts, in words. `self_check`: of its present start.
    """

    job_id: str
    folder: str
    started_unix_s: float | None
    newest_unix_s: float | None
    ended: Ended | None
    managers: int
    generation: int | None
    phase: str
    pids: dict[JobRank, int]
    faults: tuple[FaultEntry, ...]
    boxes: tuple[KeptBox, ...]
    damaged_lines: int
    omitted: tuple[str, ...] = ()
    self_check: CheckVerdict | None = None


def find_jobs(run_dir: Path) -> list[Path]:
    """Return the folders of a run directory's jobs, the newest record last; or the directory itself, if it is a job's.

    Of more than 1,000 only the newest. Raises `RecordError` if there is none.
    """
    try:
        found = [run_dir] if _is_job(run_dir) else _newest(run_dir, _is_job, _MOST_JOBS, JOURNAL)[0]
    except OSError as error:
        raise RecordError(f"{run_dir} cannot be read: {error.strerror}; run it as the user of the job") from error
    if not found:
        raise RecordError(
            f"{run_dir} holds no job: found no {JOURNAL} there nor one folder below; give the job's TASKD_RUN_DIR, on "
            "the node of its manager"
        )
    return found


def read_jobs(run_dir: Path) -> list[Timeline]:
    """Read the jobs of a run directory, the one with the newest record last.

    At most `JOURNAL_BYTES` of the others are read. The last one's `omitted` names all that could not be read. Raises
    `RecordError` if there is no job to be read.
    """
    jobs: list[Timeline] = []
    folders, unread, left = find_jobs(run_dir), [], JOURNAL_BYTES
    while folders and left > 0:
        folder = folders.pop()
        left -= _bytes(folder / JOURNAL) if jobs else 0
        try:
            jobs.append(read_job(folder))
        except RecordError as error:
            unread.append(str(error))
    if not jobs:
        raise RecordError(unread[0])
    if folders:
        unread.append(f"{len(folders)} older jobs are not read: those before have more than {JOURNAL_BYTES >> 20} MiB")
    jobs[0] = replace(jobs[0], omitted=(*jobs[0].omitted, *unread))
    return jobs[::-1]


def _newest(folder: Path, belongs: Callable[[Path], bool], most: int, changed: str = "") -> tuple[list[Path], int]:
    """Return the entries that belong there, newest last by their time or that of a file in them; and their number."""
    count = 0

    def found() -> Iterator[tuple[float, str]]:
        nonlocal count
        with os.scandir(folder) as entries:
            for entry in entries:
                if belongs(folder / entry.name):
                    count += 1
                    yield _changed_s(folder / entry.name / changed), entry.name

    newest = heapq.nlargest(most, found())
    return [folder / name for _, name in reversed(newest)], count


def _is_job(folder: Path) -> bool:
    """Return whether this is a job's folder, and this user may read it."""
    return any(os.path.exists(folder / name) for name in (JOURNAL, FAULTS, BOXES))


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(slots=True)
class _JournalReader:
    """Reader of a journal's entries, oldest first."""

    job_id: str = ""
    started_unix_s: float | None = None
    newest_unix_s: float | None = None
    ended: Ended | None = None
    managers: int = 0
    generation: int | None = None
    phase: str = ""
    by_node: dict[NodeRank | None, dict[JobRank, int]] = field(default_factory=dict)
    faults: dict[tuple[int, int], FaultEntry] = field(default_factory=dict)
    """Faults by manager and number; planned changes have negative numbers."""
    open: set[tuple[int, int]] = field(default_factory=set)  # keys of `faults` that are not closed
    newest: int = 0  # the highest number of this manager's faults
    planned: int = 0
    forgotten: int = 0
    damaged: int = 0

    def take(self, entry: dict[str, Any]) -> None:
        """Process one entry. After a `msgspec.ValidationError` or a `ValueError` nothing that matters has changed."""
        unix_s = _number(entry.get("unix_s"))
        match entry["event"]:
            case "manager started":
                self._begin(entry, unix_s)
            case "diagnosis":
                self._judge(msgspec.convert(entry, DiagnosisEntry))
            case "recovered":
                self._recover(msgspec.convert(entry, RecoveryEntry))
            case "stopped":
                self.ended = msgspec.convert(entry, Ended)
                self._give_up(entry)
                self._close_all()
            case "processes":
                known = msgspec.convert(entry, Processes)
                self.by_node[known.node_rank] = {JobRank(int(rank)): pid for rank, pid in known.pids.items()}
            case "directive":
                told = msgspec.convert(entry, DirectiveEntry)
                self.generation, self.phase = told.generation, told.phase
        self.newest_unix_s = unix_s if unix_s is not None else self.newest_unix_s
        if self.started_unix_s is None:
            self.started_unix_s = unix_s

    def _begin(self, entry: dict[str, Any], unix_s: float | None) -> None:
        if self.ended is not None:
            self.started_unix_s, self.ended, self.managers, self.forgotten = None, None, 0, 0
            self.by_node, self.faults, self.generation = {}, {}, None
            self.open.clear()
        self.job_id = str(entry.get("job_id") or self.job_id)[:NAME_CHARS]
        self.started_unix_s = self.started_unix_s if self.started_unix_s is not None else unix_s
        self.managers += 1
        self.newest = 0
        self._close_all()

    def _close_all(self) -> None:
        for key in self.open:
            self.faults[key] = replace(self.faults[key], closed=True)
        self.open.clear()

    def _judge(self, diagnosis: DiagnosisEntry) -> None:
        fault = self._fault(diagnosis.fault)
        first = fault.diagnosis is None
        began = _began(diagnosis.unix_s, diagnosis.monotonic_s, diagnosis.since_s) if first else fault.unix_s
        changes = fault.changes + (not first)
        self._put(replace(fault, diagnosis=diagnosis, unix_s=began, changes=changes))

    def _recover(self, recovery: RecoveryEntry) -> None:
        fault = self._fault(recovery.fault)
        began = _began(recovery.unix_s, recovery.monotonic_s, recovery.detected_s)
        unix_s = fault.unix_s if fault.unix_s is not None else began
        kept = fault.recoveries[1 - _MOST_RECOVERIES :]
        self.forgotten += len(fault.recoveries) - len(kept)
        self._put(replace(fault, recoveries=(*kept, recovery), unix_s=unix_s))

    def _give_up(self, entry: dict[str, Any]) -> None:
        """Record the fault that the job could not recover from, which its end names."""
        last = entry.get("fault")
        if isinstance(last, dict) and last.get("strategy"):
            recovery = msgspec.convert({**entry, "fault": None, **last}, RecoveryEntry)
            waiting = [number for _, number in self.open if number > 0 and not self._fault(number).recoveries]
            number = recovery.fault if recovery.fault is not None else max(waiting, default=None)
            self._recover(msgspec.structs.replace(recovery, fault=number))

    def _fault(self, number: int | None) -> FaultEntry:
        if number is None:
            number = self.newest + 1
        if number == 0:
            self.planned -= 1
            return FaultEntry(0, self.managers)
        return self.faults.get((self.managers, number), FaultEntry(number, self.managers))

    def _put(self, fault: FaultEntry) -> None:
        key = fault.manager, fault.number or self.planned
        self.newest = max(self.newest, fault.number)
        self.faults[key] = fault
        if not fault.closed:
            self.open.add(key)
        if len(self.faults) > _MOST_FAULTS:
            oldest = next(iter(self.faults))
            del self.faults[oldest]
            self.open.discard(oldest)
            self.forgotten += 1


def _began(unix_s: float | None, monotonic_s: float | None, since_s: float | None) -> float | None:
    if unix_s is None or monotonic_s is None or since_s is None:
        return unix_s
    return unix_s - (monotonic_s - since_s)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= LONGEST_S else None


def read_job(folder: Path) -> Timeline:
    """Read the last job of this folder; without a journal an empty one. Raises `RecordError` if it cannot be read."""
    reader = _JournalReader(job_id=folder.name)
    omitted: list[str] = []
    for line in _lines(folder, omitted):
        reader.damaged += not _taken(reader, line)
    if reader.forgotten:
        omitted.append(f"{reader.forgotten} older faults or recoveries, of more than are shown")
    boxes = _kept(folder, omitted, since_s=reader.started_unix_s or 0.0)
    return Timeline(
        job_id=reader.job_id,
        folder=str(folder),
        started_unix_s=reader.started_unix_s,
        newest_unix_s=reader.newest_unix_s,
        ended=reader.ended,
        managers=reader.managers,
        generation=reader.generation,
        phase=reader.phase,
        pids={rank: pid for pids in reader.by_node.values() for rank, pid in pids.items()},
        faults=tuple(reader.faults.values()),
        boxes=tuple(boxes),
        damaged_lines=reader.damaged,
        omitted=tuple(omitted),
        self_check=read_verdict(folder, reader.started_unix_s or 0.0),
    )


def _taken(reader: _JournalReader, line: bytes) -> bool:
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            reader.take(entry)
            return True
    except (ValueError, RecursionError, OverflowError):  # a msgspec.ValidationError is a ValueError
        return False
    return False


def _lines(folder: Path, omitted: list[str]) -> Iterator[bytes]:
    """Yield whole lines: the newest if the journal is too long. A too long line comes in pieces, none an entry."""
    newer = min(_bytes(folder / JOURNAL), JOURNAL_BYTES)
    older = 0
    if newer < JOURNAL_BYTES and _bytes(folder / OLD_JOURNAL):
        older = max(0, newer + _bytes(folder / OLD_JOURNAL) - JOURNAL_BYTES)
        try:
            yield from _tail(folder / OLD_JOURNAL, JOURNAL_BYTES - newer)
        except RecordError as error:
            omitted.append(str(error))
    else:
        older = _bytes(folder / JOURNAL) - newer + _bytes(folder / OLD_JOURNAL)
    if older >> 20:
        omitted.append(f"the oldest {older >> 20} MiB of the journal: the newest {JOURNAL_BYTES >> 20} are read")
    yield from _tail(folder / JOURNAL, JOURNAL_BYTES)


def _tail(journal: Path, left: int) -> Iterator[bytes]:
    try:
        with open_record(journal) as file:
            older = os.fstat(file.fileno()).st_size - left
            if older > 0:
                file.seek(older)
                left -= len(file.readline(_LINE_BYTES))
            while left > 0 and (line := file.readline(min(left, _LINE_BYTES))):
                left -= len(line)
                if line.strip():
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{journal} cannot be read: {error.strerror}; run it as the user of the job") from error


def _kept(folder: Path, omitted: list[str], since_s: float) -> Iterator[KeptBox]:
    """Yield the newest boxes of processes that have died since then: an earlier job of this name has left others."""

    def belongs(path: Path) -> bool:
        return _KEPT_BOX.fullmatch(path.name) is not None and _changed_s(path) >= since_s

    try:
        paths, count = _newest(folder / BOXES, belongs, _MOST_BOXES)
    except FileNotFoundError:
        return
    except OSError as error:
        omitted.append(f"{BOXES}: {error.strerror}")
        return
    if count > len(paths):
        omitted.append(f"{count - len(paths)} older black boxes of {count}")
    for path in paths:
        named = _KEPT_BOX.fullmatch(path.name)
        assert named is not None, "it was chosen by that"
        yield KeptBox(str(path), JobRank(int(named[1])), int(named[2]))
