"""One job as its run directory tells it: journal, faults and kept black boxes, also of a job that is long dead.

Rules:

1. Nothing that is found here can stop the reading: a damaged line is counted and skipped, a damaged file is named.
2. Jobs of one name share a journal. The last one counts: it begins with the first manager after a `stopped`.
3. A journal without verdicts, of an older taskd, tells its faults by their recoveries.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from taskd.errors import RecordError
from taskd.runtime.regular import open_record

JOURNAL: Final = "journal.jsonl"
FAULTS: Final = "faults"
BOXES: Final = "boxes"
_LINE_BYTES: Final = 16 << 20
_KEPT_BOX: Final = re.compile(r"rank-(\d+)-incarnation-(\d+)\.box")


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What is held against one rank; `kind` by its name."""

    rank: int
    kind: str
    text: str


class HangFact(msgspec.Struct, frozen=True, kw_only=True):
    """Why silence was taken for a hang."""

    silent_s: float | None = None
    limit_s: float | None = None
    usual_s: float | None = None
    reason: str = ""


class VerdictEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict as the journal has it. `since_s` and `monotonic_s` are of the manager's monotonic clock."""

    kind: str
    title: str = ""
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    sentence: str = ""
    facts: tuple[Fact, ...] = ()
    hang: HangFact | None = None
    fault: int | None = None
    step: int | None = None
    generation: int | None = None
    since_s: float | None = None
    unix_s: float | None = None
    monotonic_s: float | None = None
    evidence: str | None = None

    @property
    def took_s(self) -> float | None:
        """From the fault, or from the last progress before a hang, to the verdict."""
        known = self.since_s is not None and self.monotonic_s is not None
        return round(self.monotonic_s - self.since_s, 6) if known else None  # type: ignore[operator]


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery as the journal has it."""

    strategy: str
    reason: str = ""
    restart: bool = False
    causes: dict[str, str] = {}
    attempts: int | None = None
    setbacks: tuple[str, ...] = ()
    step: int | None = None
    target_step: int | None = None
    generation: int | None = None
    detected_s: float | None = None
    phases_ms: dict[str, float] = {}
    kept: dict[str, int] = {}
    replaced: dict[str, int] = {}
    fault: int | None = None
    unix_s: float | None = None
    monotonic_s: float | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How the job ended."""

    reason: str = ""
    exit_code: int | None = None
    unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """One fault, or a planned change of the world.

    Attributes:
        number: as the manager counts; without verdicts, as its recoveries come; 0 if nothing had failed.
        unix_s: when it began, for a hang the last progress; None if that is not known.
        changes: how many earlier verdicts on it were replaced.
        recoveries: what was done. Empty: nothing, or it is under way.
        closed: the job ended afterwards, or another manager took over.

    """

    number: int
    manager: int
    unix_s: float | None = None
    verdict: VerdictEntry | None = None
    changes: int = 0
    recoveries: tuple[Recovery, ...] = ()
    closed: bool = False

    @property
    def step(self) -> int | None:
        """The newest committed step when it struck."""
        steps = [one.step for one in (self.verdict, *self.recoveries) if one is not None]
        return next((step for step in steps if step is not None), None)

    @property
    def culprits(self) -> tuple[int, ...]:
        """By the verdict; without one, the ranks that were lost."""
        if self.verdict is not None:
            return self.verdict.culprits
        ranks = {rank for one in self.recoveries for rank in one.causes if rank.isdecimal()}
        return tuple(sorted(map(int, ranks)))

    @property
    def total_ms(self) -> float | None:
        """Of all its recoveries together, each until its next committed step; None if none was completed so."""
        totals = [one.phases_ms["total"] for one in self.recoveries if "total" in one.phases_ms]
        return round(sum(totals), 3) if totals else None


@dataclass(frozen=True, slots=True)
class KeptBox:
    """The black box of a process that has died."""

    file: str
    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Chronicle:
    """One job. `pids` are those that its managers saw last, by rank; `managers` how many it has had, `phase`
    what the newest directive was for.

    Faults and kept boxes come with the newest last.
    """

    job_id: str
    folder: str
    started_unix_s: float | None
    newest_unix_s: float | None
    ended: Ended | None
    managers: int
    generation: int | None
    phase: str
    pids: dict[int, int]
    faults: tuple[FaultEntry, ...]
    boxes: tuple[KeptBox, ...]
    damaged_lines: int


def find_jobs(run_dir: Path) -> list[Path]:
    """The folders of a run directory's jobs, the one with the newest record last; or the folder itself, if it is one.

    Raises `RecordError` if there is none.
    """
    try:
        found = [run_dir] if _is_job(run_dir) else [folder for folder in run_dir.iterdir() if _is_job(folder)]
    except OSError as error:
        raise RecordError(f"{run_dir} cannot be read: {error.strerror}; run it as the user of the job") from error
    if not found:
        raise RecordError(
            f"{run_dir} holds no job: found no {JOURNAL} there nor one folder below; give the job's TASKD_RUN_DIR, on "
            "the node of its manager"
        )
    return sorted(found, key=lambda folder: (_changed_s(folder / JOURNAL), folder.name))


def _is_job(folder: Path) -> bool:
    return any((folder / name).exists() for name in (JOURNAL, FAULTS, BOXES))


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(slots=True)
class _Reader:
    """Takes in a journal's entries, oldest first."""

    job_id: str = ""
    started_unix_s: float | None = None
    newest_unix_s: float | None = None
    ended: Ended | None = None
    managers: int = 0
    generation: int | None = None
    phase: str = ""
    by_node: dict[object, dict[int, int]] = field(default_factory=dict)
    faults: dict[tuple[int, int], FaultEntry] = field(default_factory=dict)
    """By manager and number; planned changes have negative ones."""
    planned: int = 0
    damaged: int = 0

    def take(self, entry: dict[str, Any]) -> None:
        """One entry. Raises `msgspec.ValidationError` or `ValueError`, and has then changed nothing that matters."""
        unix_s = _number(entry.get("unix_s"))
        match entry["event"]:
            case "manager started":
                self._begin(entry, unix_s)
            case "verdict":
                self._judge(msgspec.convert(entry, VerdictEntry))
            case "recovered":
                self._recover(msgspec.convert(entry, Recovery))
            case "stopped":
                self.ended = msgspec.convert(entry, Ended)
                self._give_up(entry)
                self._close_all()
            case "processes":
                pids = msgspec.convert(entry.get("pids"), dict[str, int])
                self.by_node[str(entry.get("node_rank"))] = {int(rank): pid for rank, pid in pids.items()}
            case "directive":
                self.generation = msgspec.convert(entry.get("generation"), int | None)
                self.phase = str(entry.get("phase", ""))
        self.newest_unix_s = unix_s if unix_s is not None else self.newest_unix_s
        if self.started_unix_s is None:
            self.started_unix_s = unix_s

    def _begin(self, entry: dict[str, Any], unix_s: float | None) -> None:
        if self.ended is not None:
            self.started_unix_s, self.ended, self.managers = None, None, 0
            self.by_node, self.faults, self.generation = {}, {}, None
        self.job_id = str(entry.get("job_id") or self.job_id)
        self.started_unix_s = self.started_unix_s if self.started_unix_s is not None else unix_s
        self.managers += 1
        self._close_all()

    def _close_all(self) -> None:
        for key, fault in self.faults.items():
            self.faults[key] = replace(fault, closed=True)

    def _judge(self, verdict: VerdictEntry) -> None:
        fault = self._fault(verdict.fault)
        first = fault.verdict is None
        began = _began(verdict.unix_s, verdict.monotonic_s, verdict.since_s) if first else fault.unix_s
        changes = fault.changes + (not first)
        self._put(replace(fault, verdict=verdict, unix_s=began, changes=changes))

    def _recover(self, recovery: Recovery) -> None:
        fault = self._fault(recovery.fault)
        began = _began(recovery.unix_s, recovery.monotonic_s, recovery.detected_s)
        unix_s = fault.unix_s if fault.unix_s is not None else began
        self._put(replace(fault, recoveries=(*fault.recoveries, recovery), unix_s=unix_s))

    def _give_up(self, entry: dict[str, Any]) -> None:
        """The end of a job names the fault that it could not recover from."""
        last = entry.get("fault")
        if isinstance(last, dict) and last.get("strategy"):
            recovery = msgspec.convert({**entry, "fault": None, **last}, Recovery)
            waiting = [
                fault.number
                for fault in self.faults.values()
                if fault.manager == self.managers and fault.number and not fault.recoveries
            ]
            number = recovery.fault if recovery.fault is not None else max(waiting, default=None)
            self._recover(msgspec.structs.replace(recovery, fault=number))

    def _fault(self, number: int | None) -> FaultEntry:
        if number is None:
            number = max(0, *(key[1] for key in self.faults if key[0] == self.managers), 0) + 1
        if number == 0:
            self.planned -= 1
            return FaultEntry(0, self.managers)
        return self.faults.get((self.managers, number), FaultEntry(number, self.managers))

    def _put(self, fault: FaultEntry) -> None:
        self.faults[fault.manager, fault.number or self.planned] = fault


def _began(unix_s: float | None, monotonic_s: float | None, since_s: float | None) -> float | None:
    if unix_s is None or monotonic_s is None or since_s is None:
        return unix_s
    return unix_s - (monotonic_s - since_s)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def read_job(folder: Path) -> Chronicle:
    """The last job of this folder. Without a journal it is an empty one. Raises `RecordError` if it cannot be read."""
    reader = _Reader(job_id=folder.name)
    for line in _lines(folder / JOURNAL):
        reader.damaged += not _taken(reader, line)
    return Chronicle(
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
        boxes=tuple(_kept(folder)),
        damaged_lines=reader.damaged,
    )


def _taken(reader: _Reader, line: bytes) -> bool:
    try:
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            reader.take(entry)
            return True
    except (ValueError, RecursionError, OverflowError):  # a msgspec.ValidationError is a ValueError
        return False
    return False


def _lines(journal: Path) -> Iterator[bytes]:
    """Whole lines; of one that is too long, pieces that are none."""
    try:
        with open_record(journal) as file:
            while line := file.readline(_LINE_BYTES):
                if line.strip():
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{journal} cannot be read: {error.strerror}; run it as the user of the job") from error


def _kept(folder: Path) -> list[KeptBox]:
    named = ((path, _KEPT_BOX.fullmatch(path.name)) for path in (folder / BOXES).glob("*.box"))
    boxes = [(_changed_s(path), path, name) for path, name in named if name is not None]
    return [KeptBox(str(path), int(name[1]), int(name[2])) for _, path, name in sorted(boxes, key=lambda box: box[:2])]
