"""Symptoms of one rank, from its own evidence: tables in which the first row that holds decides.

Rules:

1. `FAILED` needs no hang: the process has ended, is ending, or an exception has ended its main thread.
2. `STANDSTILL` and `STUCK` apply only to ranks that live, in a job that makes no progress. `STANDSTILL` holds whatever
   a rank waits for. `STUCK` gives the activity of a rank that holds others up.
3. An error text that blames a connection is a consequence: a peer has failed, and the peer's evidence decides.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from taskd.core.diagnosis.endings import SIGABRT, died_of, faulted, killed_for_memory
from taskd.core.diagnosis.evidence import Evidence, RunState, Standing
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.waits import UNANSWERED_S

_NO_SPACE: Final = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
_WRITING: Final = re.compile(r"PytorchStreamWriter|unexpected pos|failed writing|write error|^OSError")
_DEVICE_MEMORY: Final = re.compile(
    r"\b(?:CUDA|HIP|NPU) (?:error: )?out of memory|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError"
)
_HOST_MEMORY: Final = re.compile(
    r"^MemoryError|DefaultCPUAllocator: can't allocate|Cannot allocate memory|\bbad_alloc\b"
)
_CHILD_KILLED: Final = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal: Killed|exited unexpectedly)")
_CONNECTION: Final = re.compile(
    r"Connection (?:closed by peer|was likely closed|refused|reset)|connection (?:reset|refused)|[Bb]roken pipe"
    r"|Timed out waiting \d+ms for \w+ operation|Application timeout caused pair closure|Socket (?:closed|Timeout)"
    r"|Gloo connectFullMesh failed|wait timeout after \d+ms|op\.preamble\.|DistNetworkError|DistStoreError"
    r"|remote process exited|ncclRemoteError|ncclSystemError|communicator was aborted|collective operation timeout"
    r"|SUSPECT REMOTE ERROR|HCCL OP RETRY FAILED|\bEI000[26]\b|gloo/transport/.*[Tt]imeout|unhandled system error"
)
_ANY_CONNECTION: Final = re.compile(r"^(?:Connection\w*|BrokenPipe)Error\b")
"""Python's own errors: about a peer, or just as likely about a connection that has nothing to do with the job."""
_TRANSPORT: Final = re.compile(r"gloo/transport/|\bDist\w*Error\b")
_SIZES: Final = re.compile(r"op\.preamble\.nbytes")
_LOADER: Final = re.compile(r"torch/utils/data/(?:dataloader|_utils/|datapipes/)|torchdata/")
_LOCK: Final = re.compile(r"(?:/threading\.py:\d+ in (?:acquire|wait|join|_wait_for_tstate_lock)|/queue\.py:\d+ in )")
_OUTSIDE: Final = re.compile(
    r"distributed_c10d\.py:\d+ in |distributed/rendezvous\.py|distributed/elastic/"
    r"|in (?:_store_based_barrier|monitored_barrier)$"
)
_FRAMES_ASKED: Final = 4


@dataclass(frozen=True, slots=True)
class Symptom:
    """One row of a table: the rank's condition is `kind` if `holds` is true. `reason` justifies it."""

    kind: Kind
    holds: Callable[[Evidence], bool]
    reason: str


def _text(known: Evidence) -> str:
    error = known.end.error
    return error.text if error is not None and error.main else ""


def _disk_full(known: Evidence) -> bool:
    text = _text(known)
    return bool(_NO_SPACE.search(text) or (known.blockers.full_disk is not None and _WRITING.search(text)))


def _out_of_cgroup(known: Evidence) -> bool:
    struck = known.cgroup is not None and bool(known.cgroup.oom_kills)
    return killed_for_memory(known) or (struck and bool(_CHILD_KILLED.search(_text(known))))


def _blames_peer(known: Evidence) -> bool:
    text = _text(known)
    return bool(_CONNECTION.search(text)) and not _ANY_CONNECTION.search(text)


def of_a_connection(text: str) -> bool:
    """Return whether this error may be a consequence of a peer's fault.

    Sizes that differ are no consequence: both ranks have made their calls that way.
    """
    patterns = (_CONNECTION, _ANY_CONNECTION, _TRANSPORT)
    return not _SIZES.search(text) and any(pattern.search(text) for pattern in patterns)


def may_blame_peer(known: Evidence) -> bool:
    """Return whether its error is about some connection, perhaps with a peer."""
    return bool(_ANY_CONNECTION.search(_text(known)))


def blames_sizes(known: Evidence) -> bool:
    """Return whether gloo has failed because it received more than it had asked for."""
    return bool(_SIZES.search(_text(known)))


def left_by_itself(known: Evidence) -> int | None:
    """Return the status with which the script leaves its training function by sys.exit(); None if it does not."""
    error = known.end.error
    if error is None or not error.main or error.kind != "SystemExit":
        return None
    return 0 if error.message in ("", "None", "0") else int(error.message) if error.message.isdigit() else 1


def _exited(known: Evidence) -> bool:
    return known.end.ending is not None and bool(known.end.ending.status)


FAILED: Final = (
    Symptom(Kind.OOM_CGROUP, _out_of_cgroup, "the cgroup's counter of kills has risen with its end"),
    Symptom(Kind.DISK_FULL, _disk_full, "its own error says so"),
    Symptom(Kind.OOM_DEVICE, lambda known: bool(_DEVICE_MEMORY.search(_text(known))), "its own error says so"),
    Symptom(Kind.OOM_HOST, lambda known: bool(_HOST_MEMORY.search(_text(known))), "its own error says so"),
    Symptom(Kind.COLLATERAL, _blames_peer, "its error blames a connection"),
    Symptom(
        Kind.EXITED_EARLY, lambda known: left_by_itself(known) == 0, "it leaves its training function by sys.exit()"
    ),
    Symptom(Kind.EXITED, lambda known: bool(left_by_itself(known)), "it leaves its training function by sys.exit()"),
    Symptom(
        Kind.EXCEPTION, lambda known: bool(_text(known)), "an exception that is its own comes before its consequences"
    ),
    Symptom(Kind.CRASHED, faulted, "the kernel sent the signal for what a thread of it had done"),
    Symptom(Kind.ABORTED, lambda known: died_of(known) == SIGABRT, "nothing but the process itself calls abort()"),
    Symptom(Kind.KILLED, lambda known: died_of(known) is not None, "a signal ended it from outside"),
    Symptom(Kind.EXITED, _exited, "it ended by itself and without an exception"),
    Symptom(Kind.EXITED_EARLY, lambda known: known.end.ending is not None, "it ended as if all were done"),
    Symptom(Kind.DYING, lambda known: known.gone, "the kernel has marked its death and is taking it down"),
)
"""Signs that a rank has failed. EXITED_EARLY is a fault only if others need the rank; the diagnosis checks that."""


def condition_of_end(known: Evidence) -> Symptom | None:
    """Return why a rank has failed; None if it has not, or if taskd itself has ended it."""
    if known.end.ending is not None and known.end.ending.fenced:
        return None
    if not known.gone and not _text(known):
        return None
    return next(row for row in FAILED if row.holds(known))


def _state(known: Evidence, *states: RunState) -> bool:
    return known.process is not None and known.process.state in states


def _uninterruptible(known: Evidence) -> bool:
    lasting = known.process is None or known.process.state_s is None or known.process.state_s >= UNANSWERED_S
    return _state(known, RunState.UNINTERRUPTIBLE) and lasting


def _silent(answer_s: float | None) -> bool:
    return answer_s is not None and answer_s >= UNANSWERED_S


def _gil_held(known: Evidence) -> bool:
    return known.clocks is not None and _silent(known.clocks.gil_s)


def _main_silent(known: Evidence) -> bool:
    return known.clocks is not None and _silent(known.clocks.main_s)


def _in(pattern: re.Pattern[str], known: Evidence) -> bool:
    return any(pattern.search(frame) for frame in known.frames.stack[:_FRAMES_ASKED])


def _without_data(known: Evidence) -> bool:
    return _silent(known.blockers.data_wait_s) or any(_LOADER.search(frame) for frame in known.frames.stack)


def _on_full_disk(known: Evidence) -> bool:
    return known.blockers.full_disk is not None and (
        known.position.standing is Standing.CHECKPOINT or _main_silent(known)
    )


def _locked(known: Evidence) -> bool:
    wchan = known.process.wchan if known.process is not None else None
    return (_main_silent(known) and "futex" in (wchan or "")) or _in(_LOCK, known)


def _loops(known: Evidence) -> bool:
    return known.clocks is not None and known.clocks.main_s is not None


STANDSTILL: Final = (
    Symptom(
        Kind.FROZEN,
        lambda known: known.cgroup is not None and known.cgroup.frozen is True,
        "its cgroup is frozen",
    ),
    Symptom(Kind.STOPPED, lambda known: _state(known, RunState.STOPPED, RunState.TRACED), "its state in /proc is T"),
)
"""Conditions that hold whatever the rank waits for: as long as they do, it cannot go on."""

STUCK: Final = (
    Symptom(Kind.UNINTERRUPTIBLE, _uninterruptible, "its state in /proc is D: it waits for a device or a file server"),
    Symptom(Kind.GIL_HELD, _gil_held, "its native thread beats, and no Python thread can run"),
    Symptom(Kind.DISK_FULL, _on_full_disk, "it is writing, and no space is left"),
    Symptom(
        Kind.LOCK_FILE,
        lambda known: known.blockers.lock_file is not None,
        "its main thread waits until a lock file is gone",
    ),
    Symptom(Kind.DATA_BLOCKED, _without_data, "its main thread waits for the next batch"),
    Symptom(Kind.DEADLOCK, _locked, "its main thread waits for a lock while others could run"),
    Symptom(Kind.BLOCKED, _main_silent, "its main thread is in a native call and has let go of the GIL"),
    Symptom(Kind.LOOP, _loops, "its main thread runs Python code and gets nowhere"),
    Symptom(Kind.BEHIND, lambda _: True, "it has not entered what the others wait in, and nothing says why"),
)


def condition_of_standstill(known: Evidence) -> Symptom | None:
    """Return why the whole process stands still; None if it does not."""
    return next((row for row in STANDSTILL if row.holds(known)), None)


def condition_of_hang(known: Evidence) -> Symptom:
    """Return why a rank does not go on and holds others up."""
    return condition_of_standstill(known) or next(row for row in STUCK if row.holds(known))


def holds_still(known: Evidence) -> bool:
    """Return whether the whole process stands still."""
    return condition_of_standstill(known) is not None


def cannot_answer(known: Evidence) -> bool:
    """Return whether no Python can run there. Such a process cannot answer a request for an account of its state."""
    return holds_still(known) or _gil_held(known)


def waits_by_stack(known: Evidence) -> bool:
    """Return whether its Python stack is in a collective or at a rendezvous, which the black box may have missed."""
    return _in(_OUTSIDE, known)
