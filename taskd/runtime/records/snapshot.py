"""A snapshot of one process from its black box, in values that can be read without a clock: ages, names, words.

Rules:

1. A box is not trusted: whatever numbers it holds, the result is a `BoxSnapshot`, or a `ShimError` if it is no box.
2. Times in a box are of the monotonic clock of the machine that wrote it. Ages count from now while the process lives
   here, and otherwise from its end, or from the newest time in the box. The wall clock is shown only if the box is
   plausibly of this boot: in shared memory, of a living process, or written when its process ended.
3. Nothing here changes the box or the process.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskd.core.diagnosis.endings import explain, signal_name
from taskd.core.diagnosis.evidence import Ending, EndSigns, Evidence, FatalSignal, Process, PythonError, Sender
from taskd.runtime.box.blackbox import (
    Backend,
    Box,
    BoxClocks,
    BoxCommunicator,
    BoxEvent,
    BoxPhase,
    Life,
    Postmortem,
    Reading,
)
from taskd.runtime.box.postmortem import BoxSender, BoxSignal, LastWords, Request
from taskd.runtime.folders.rank_folders import SHARED_MEMORY
from taskd.runtime.records.lookup import ProcessView, namespaced_pids, view
from taskd.wire.kinds import JobRank

MOST_EVENTS: Final = 1024
_SECOND_NS: Final = 1_000_000_000
_KEPT_WITHIN_S: Final = 60.0
"""An agent keeps the box of a dead process within this time, so the file's own time shows its boot."""
_TERMINATED_WITHIN_S: Final = 1.0
"""A SIGTERM at most this long before an end without another known cause counts as its cause."""
_SIGTERM: Final = 15


@dataclass(frozen=True, slots=True)
class SignalView:
    """A fatal signal, or the newest SIGTERM (then without thread, address and frames)."""

    signal: str
    signum: int
    age_s: float | None
    sender: Sender | None = None
    thread: str = ""
    tid: int = 0
    address: str | None = None
    frames: tuple[str, ...] = ()
    handled: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class WordsView:
    """The exception that ended a thread; `main` if that was the main thread."""

    kind: str
    where: str
    message: str
    main: bool
    age_s: float | None


@dataclass(frozen=True, slots=True)
class ClocksView:
    """Silence of each part of a process in seconds, as in `core.diagnosis.evidence.Clocks`."""

    native_s: float | None
    gil_s: float | None
    main_s: float | None


@dataclass(frozen=True, slots=True)
class CommunicatorView:
    """One communicator. `comm` is its id as 16 hexadecimal digits; -1 means not known."""

    comm: str
    backend: str
    rank: int
    ranks: int
    number: int
    opened_s: float | None
    closed: bool


@dataclass(frozen=True, slots=True)
class CollectiveView:
    """One recorded operation. For an open one, `lasted_s` is how long it has been open."""

    operation: str
    backend: str
    comm: str
    number: int
    bytes: int
    peer: int
    tid: int
    entered_s: float | None
    lasted_s: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class BoxSnapshot:
    """Snapshot of one process.

    Attributes:
        state: "alive", "dead", "not claimed" (no process has attached yet), or "unknown": it lived when the box was
            copied, or lives where this process cannot see it.
        ages: start of all ages: "now", "its end", or "the newest time in the box".
        at_unix_s: that moment on the wall clock; None if the box may be of another machine or boot.
        claims: more than 1 if the process has replaced itself by exec.
        how: how it ended, in words; "" if it has not.
        process: its facts in /proc; None if it is not there.
    """

    file: str
    pid: int
    rank: JobRank
    incarnation: int
    claims: int
    state: str
    ages: str
    at_unix_s: float | None
    attached_s: float | None
    how: str
    exit_status: int | None
    exit_s: float | None
    fatal: SignalView | None
    terminated: SignalView | None
    last_words: WordsView | None
    clocks: ClocksView
    step: int | None
    step_s: float | None
    phase: str
    phase_s: float | None
    communicators: tuple[CommunicatorView, ...]
    collectives: tuple[CollectiveView, ...]
    noted: int
    dropped: int
    process: ProcessView | None


class _Moment:
    """Reference time of all ages."""

    def __init__(self, at_ns: int, name: str) -> None:
        self.at_ns = at_ns
        self.name = name

    def age_s(self, time_ns: int) -> float | None:
        """Return the seconds before the moment; None for never, and for impossible times."""
        return round((self.at_ns - time_ns) / _SECOND_NS, 6) if 0 < time_ns <= self.at_ns else None

    def unix_s(self) -> float:
        """Return the moment on the wall clock, if the time is of this boot."""
        return time.time() - (time.monotonic_ns() - self.at_ns) / _SECOND_NS


def take_snapshot(path: Path, pid: int | None = None) -> BoxSnapshot:
    """Read one box. `pid` is its process as this one sees it, if known. Raises `ShimError` if it is no box."""
    box = Box.open(path)
    try:
        return _take_snapshot(box, pid)
    finally:
        box.close()


def _take_snapshot(box: Box, pid: int | None) -> BoxSnapshot:
    said, clocks, left = box.read(), box.clocks(), box.postmortem()
    communicators, events = box.communicators(), box.events(MOST_EVENTS)
    seen = _living(said, pid)
    process = view(seen) if seen is not None else None
    state = _state(said, process)
    moment = _moment(said, clocks, left, communicators, events, alive=state == "alive")
    here = _of_this_boot(box.path, state, moment)
    fatal = _fatal(left.fault, moment, here=here) if left.fault is not None else None
    words = _words(left.last_words, said.owner_pid, moment) if left.last_words is not None else None
    terminated = _terminated(left.request, moment, here=here) if left.request is not None else None
    return BoxSnapshot(
        file=str(box.path),
        pid=said.owner_pid,
        rank=said.rank,
        incarnation=said.incarnation,
        claims=said.claims,
        state=state,
        ages=moment.name,
        at_unix_s=round(moment.unix_s(), 3) if here else None,
        attached_s=moment.age_s(said.claimed_ns),
        how=_how(said, fatal, terminated, words) if state == "dead" or left.exit_status is not None else "",
        exit_status=left.exit_status,
        exit_s=moment.age_s(left.exit_ns),
        fatal=fatal,
        terminated=terminated,
        last_words=words,
        clocks=_clocks(clocks, moment),
        step=said.step if said.step >= 0 else None,
        step_s=moment.age_s(said.step_ns),
        phase=BoxPhase(said.phase).name.lower() if said.phase in set(BoxPhase) else str(said.phase),
        phase_s=moment.age_s(said.phase_ns),
        communicators=tuple(_communicator(one, moment) for one in communicators),
        collectives=tuple(_collective(one, moment) for one in events),
        noted=said.events,
        dropped=said.dropped,
        process=process,
    )


def _living(said: Reading, pid: int | None) -> int | None:
    """Return the pid of the box's process in our namespace; None if it is gone, also if its pid was used again."""
    seen = said.owner_pid if pid is None else pid
    if seen <= 0 or said.owner_pid not in namespaced_pids(seen):
        return None
    found = view(seen)
    younger = found is not None and found.started_ns > said.claimed_ns + _SECOND_NS
    return None if found is None or younger else seen


def _state(said: Reading, process: ProcessView | None) -> str:
    if said.owner_pid <= 0 or said.life is Life.UNCLAIMED:
        return "not claimed"
    if said.life is Life.LOST:
        return "dead"
    return "alive" if process is not None else "unknown"


def _moment(
    said: Reading,
    clocks: BoxClocks,
    left: Postmortem,
    communicators: Iterable[BoxCommunicator],
    events: Iterable[BoxEvent],
    *,
    alive: bool,
) -> _Moment:
    if alive:
        return _Moment(time.monotonic_ns(), "now")
    parts = (left.fault, left.request, left.last_words)
    newest = max(
        said.claimed_ns, clocks.native_ns, clocks.gil_ns, clocks.main_ns, said.step_ns, said.phase_ns, left.exit_ns,
        *(part.at_ns for part in parts if part is not None),
        *(one.opened_ns for one in communicators),
        *(max(one.entered_ns, one.left_ns) for one in events),
    )  # fmt: skip
    return _Moment(newest, "its end" if said.life is Life.LOST else "the newest time in the box")


def _of_this_boot(path: Path, state: str, moment: _Moment) -> bool:
    if state == "alive":
        return True
    if not 0 < moment.at_ns <= time.monotonic_ns():
        return False
    if path.is_relative_to(SHARED_MEMORY):
        return True
    try:
        return abs(path.stat().st_mtime - moment.unix_s()) <= _KEPT_WITHIN_S
    except OSError:
        return False


def _sender(sender: BoxSender | None, at_ns: int, *, here: bool) -> Sender | None:
    """Return the sender, with its name if it still lives. A pid that was used again since is another process."""
    if sender is None:
        return None
    found = view(sender.pid) if here else None
    return Sender(sender.pid, sender.uid, found.command if found is not None and found.started_ns < at_ns else "")


def _fatal(fault: BoxSignal, moment: _Moment, *, here: bool) -> SignalView:
    return SignalView(
        signal=signal_name(fault.signum),
        signum=fault.signum,
        age_s=moment.age_s(fault.at_ns),
        sender=_sender(fault.sender, fault.at_ns, here=here),
        thread=fault.thread,
        tid=fault.tid,
        address=f"0x{fault.address:x}" if fault.address is not None else None,
        frames=tuple(map(str, fault.frames)),
        handled=fault.handled,
    )


def _terminated(request: Request, moment: _Moment, *, here: bool) -> SignalView:
    sender = _sender(request.sender, request.at_ns, here=here)
    return SignalView(signal_name(_SIGTERM), _SIGTERM, moment.age_s(request.at_ns), sender, count=request.count)


def _words(words: LastWords, owner_pid: int, moment: _Moment) -> WordsView:
    return WordsView(words.kind, words.where, words.message, words.tid == owner_pid, moment.age_s(words.at_ns))


def _how(said: Reading, fatal: SignalView | None, terminated: SignalView | None, words: WordsView | None) -> str:
    """Return the end in one sentence without a subject."""
    if said.exit_status is not None:
        ended = Ending(status=said.exit_status)
        error = PythonError(words.kind, words.message, words.where) if words is not None and said.exit_status else None
        reason = f", after {error.text}" + (f", at {error.where}" if error.where else "") if error is not None else ""
        return explain(Evidence(end=EndSigns(ending=ended, error=error))) + reason
    process = Process(said.owner_pid)
    if fatal is not None and not fatal.handled:
        address = int(fatal.address, 16) if fatal.address is not None else None
        recorded = FatalSignal(fatal.signum, address, fatal.thread, sender=fatal.sender)
        return explain(Evidence(process=process, end=EndSigns(life_lost=True, fatal=recorded)))
    if terminated is not None and terminated.age_s is not None and terminated.age_s <= _TERMINATED_WITHIN_S:
        ended = Ending(signum=_SIGTERM)
        signs = EndSigns(life_lost=True, ending=ended, terminated_by=terminated.sender)
        return explain(Evidence(process=process, end=signs))
    return (
        "without a word: SIGKILL (exit code 137; by somebody, or by the kernel's OOM killer) or os._exit; "
        "the job's journal has the wait status and the OOM counter"
    )


def _clocks(clocks: BoxClocks, moment: _Moment) -> ClocksView:
    def waiting_s(asked_ns: int, answered_ns: int) -> float | None:
        return moment.age_s(asked_ns) if asked_ns else 0.0 if answered_ns else None

    return ClocksView(
        moment.age_s(clocks.native_ns),
        waiting_s(clocks.gil_asked_ns, clocks.gil_ns),
        waiting_s(clocks.main_asked_ns, clocks.main_ns),
    )


def _communicator(one: BoxCommunicator, moment: _Moment) -> CommunicatorView:
    opened_s = moment.age_s(one.opened_ns)
    return CommunicatorView(
        f"{one.id:016x}", _backend(one.backend), one.rank, one.ranks, one.number, opened_s, one.closed
    )


def _collective(one: BoxEvent, moment: _Moment) -> CollectiveView:
    opened = one.left_ns == 0
    lasted_ns = (moment.at_ns if opened else one.left_ns) - one.entered_ns
    return CollectiveView(
        operation=one.operation.name.lower().replace("_", "-"),
        backend=_backend(one.backend),
        comm=f"{one.comm:016x}",
        number=one.number,
        bytes=one.bytes,
        peer=one.peer,
        tid=one.tid,
        entered_s=moment.age_s(one.entered_ns),
        lasted_s=round(lasted_ns / _SECOND_NS, 6) if lasted_ns >= 0 else None,
        open=opened,
    )


def _backend(backend: Backend) -> str:
    return backend.name.lower()
