"""Check whether a process can still make progress: its threads that ran lately, and the waits of the others.

Rules:

1. It takes two looks: `Look` is the first, `compare` the second. A thread that has run, come or gone between them is at
   work. A thread cannot wake by itself if it sleeps without a time limit on a lock that no other process can reach.
2. All other sleep ends from elsewhere: a child, a socket, a file, a timer. Unreadable sleep counts as such.
3. taskd's own threads do not count, even if they come and go. Threads of torch that beat regardless of the job do not
   count as long as they only beat.
4. A look costs some 30 us for each thread. It is taken of a process that stands still, not of one that trains.
"""

import os
import platform
from dataclasses import dataclass
from signal import SIGALRM, SIGHUP, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM
from time import monotonic
from typing import Final

from taskd.core.diagnosis.evidence import Stillness
from taskd.runtime.system.hidden import ZEROMQ_NAMES
from taskd.runtime.system.processes import read

_FUTEX: Final = "futex"
_LOCK: Final = "a lock"
_X86: Final = {
    202: _FUTEX, 35: "a sleep", 230: "a sleep", 61: "a child process", 247: "a child process",
    56: "the start of a process", 57: "the start of a process",
    58: "the start of a process",
    0: "a read", 17: "a read", 19: "a read", 1: "a write", 18: "a write", 20: "a write", 40: "a write", 2: "a file",
    257: "a file", 3: "a file", 74: "a write", 75: "a write", 42: "a socket", 43: "a socket", 44: "a socket",
    45: "a socket", 46: "a socket", 47: "a socket", 288: "a socket", 7: "a poll", 271: "a poll", 23: "a poll",
    270: "a poll", 232: "a poll", 281: "a poll", 441: "a poll", 34: "a signal", 128: "a signal",
    435: "the start of a process",
}  # fmt: skip
_ARM: Final = {
    98: _FUTEX, 101: "a sleep", 115: "a sleep", 260: "a child process", 95: "a child process",
    220: "the start of a process", 435: "the start of a process", 63: "a read", 67: "a read", 65: "a read",
    64: "a write", 68: "a write", 66: "a write", 71: "a write", 56: "a file", 57: "a file", 82: "a write",
    83: "a write",
    203: "a socket", 202: "a socket", 242: "a socket", 206: "a socket", 207: "a socket", 211: "a socket",
    212: "a socket", 73: "a poll", 72: "a poll", 22: "a poll", 441: "a poll", 137: "a signal",
}  # fmt: skip
_CALLS: Final = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})
_OWN: Final = ("taskd-", ZEROMQ_NAMES)
_BEATING: Final = ("gloo_tcp_loop", "pt_tcpstore", "pt_nccl_watchdg", "pt_nccl_heartbt", "cuda-EvtHandlr")
_BEAT_SHARE: Final = 0.05
"""Largest share of a core for a thread that only beats."""
_BRIEF_S: Final = 0.05
"""Shortest time between two looks that are comparable."""
_PRIVATE: Final = 128
_WAITS: Final = (0, 9)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET."""
_WAKING: Final = sum(1 << signum - 1 for signum in (SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO))
"""Signals that may wake a script which handles them. Other signals end it, or come from its own actions."""
_MOST_TOLD: Final = 4
_PARTITION_FIELDS: Final = 14


@dataclass(frozen=True, slots=True)
class Look:
    """First of two looks: the time and turns that each thread has run, and the bytes read and written."""

    at_s: float
    runs: dict[int, tuple[int, int]]
    """Nanoseconds on a processor, and turns, of each thread that is not taskd's."""
    io_bytes: int | None
    disks: str | None


def look(pid: int) -> Look | None:
    """Take a look at all threads of a process; None if it is gone or may not be read."""
    at_s, runs = monotonic(), {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for thread in threads:
        if int(thread) != pid and _name(pid, thread).startswith(_OWN):
            continue
        ran = _ran(pid, thread)
        if ran is not None:
            runs[int(thread)] = ran
    return Look(at_s, runs, _io_bytes(pid), _disks()) if runs else None


def compare(pid: int, before: Look) -> Stillness | None:
    """Return the process's activity since that look, and its waits; None if it is too early, or the process is gone."""
    window_s = monotonic() - before.at_s
    if window_s < _BRIEF_S:
        return None
    now = look(pid)
    if now is None:
        return None
    ran, waits, main = [], [], ""
    for thread, (run_ns, turns) in sorted(now.runs.items()):
        name = "its main thread" if thread == pid else _name(pid, thread)
        state, wait = _wait(pid, thread)
        if thread == pid:
            main = wait
        known = before.runs.get(thread)
        share = (run_ns - known[0]) / 1e9 / window_s if known is not None else 1.0
        if name.startswith(_BEATING) and share <= _BEAT_SHARE:
            continue
        if state == "R" or known is None or known[1] != turns or known[0] != run_ns:
            ran.append((share, f"{name} ran ({share:.0%} of a core)" if known is not None else f"{name} is new"))
        elif wait != _LOCK:
            waits.append(f"{name} waits for {wait}")
    if main == _LOCK and _handles_signals(pid):
        waits.append("its main thread waits for a lock, or a signal")
    ran.sort(reverse=True)
    gone = len(before.runs.keys() - now.runs.keys())
    told = [text for _, text in ran] + [f"{gone} threads have ended"] * (gone > 0)
    return Stillness(
        window_s=round(window_s, 3),
        main=main,
        ran=tuple(told[:_MOST_TOLD]),
        share=round(sum(share for share, _ in ran), 3),
        waits=tuple(waits[:_MOST_TOLD]),
        io_bytes=None if None in (now.io_bytes, before.io_bytes) else (now.io_bytes or 0) - (before.io_bytes or 0),
        disks_idle=None if None in (now.disks, before.disks) else now.disks == before.disks,
    )


def _name(pid: int, thread: int | str) -> str:
    return (read(f"/proc/{pid}/task/{thread}/comm") or "").strip()


def _ran(pid: int, thread: str) -> tuple[int, int] | None:
    words = (read(f"/proc/{pid}/task/{thread}/schedstat") or "").split()
    try:
        return int(words[0]), int(words[2])
    except (IndexError, ValueError):
        return None


def _wait(pid: int, thread: int) -> tuple[str, str]:
    """Return a thread's state, and the thing that it waits for, as text."""
    fields = (read(f"/proc/{pid}/task/{thread}/stat") or "").rpartition(")")[2].split()
    state = fields[0] if fields else ""
    words = (read(f"/proc/{pid}/task/{thread}/syscall") or "").split()
    if not words:
        return state, "something that cannot be seen"
    if words[0] == "running":
        return state, "nothing: it runs"
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:]]
    except ValueError:
        return state, "something that cannot be seen"
    call = _CALLS.get(number, f"system call {number}" if number >= 0 else "memory")
    return state, _lock(arguments) if call is _FUTEX else call


def _lock(arguments: list[int]) -> str:
    """Return the kind of lock, by the arguments of futex(2)."""
    if len(arguments) < 4 or arguments[1] & 0x7F not in _WAITS:
        return "a lock of another kind"
    if arguments[3]:
        return "a lock, with a time limit"
    return _LOCK if arguments[1] & _PRIVATE else "a lock that other processes share"


def _handles_signals(pid: int) -> bool:
    """Return whether the process may be waiting for a signal; True if that cannot be read."""
    fields = dict(line.partition(":")[::2] for line in (read(f"/proc/{pid}/status") or "").splitlines())
    try:
        return bool(int(fields["SigCgt"], 16) & _WAKING)
    except (KeyError, ValueError):
        return True


def _io_bytes(pid: int) -> int | None:
    """Return the bytes that the process has read and written, pipes and sockets included; None if unknown."""
    fields = dict(line.partition(": ")[::2] for line in (read(f"/proc/{pid}/io") or "").splitlines())
    try:
        return int(fields["rchar"]) + int(fields["wchar"])
    except (KeyError, ValueError):
        return None


def _disks() -> str | None:
    """Return a text that changes when any disk of this machine does something; None if unknown."""
    text = read("/proc/diskstats")
    if text is None:
        return None
    lines = (line.split() for line in text.splitlines())
    return " ".join("/".join(words[3:_PARTITION_FIELDS]) for words in lines if any(word != "0" for word in words[3:]))
