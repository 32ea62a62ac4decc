"""The end of a process in words: exit statuses, signals, and the known facts about their cause.

Rules:

1. An exit status above 128 is read as a shell reads it: 137 is signal 9. A signal is reported with the status that a
   shell would show, because schedulers print that one.
2. The sender of a signal is named if the black box has recorded it. SIGKILL leaves no record. There, the cgroup's
   counter of kills distinguishes the kernel's OOM killer from a person.
3. A cause is the text in the log, in the record of a fault and in the budget. It begins with the status as torchrun
   writes it.
"""

from typing import Final

from taskd.core.diagnosis.evidence import Cgroup, Ending, Evidence, Sender

SIGABRT: Final = 6
SIGKILL: Final = 9
SIGTERM: Final = 15
NATIVE_FAULTS: Final = {
    4: "an illegal instruction",
    5: "a trap",
    7: "a memory access that the hardware or a truncated file refused",
    8: "an arithmetic fault",
    11: "an invalid memory access",
    31: "a forbidden system call",
}
"""Signals that the kernel sends because of a thread's own last action."""

_NAMES: Final = {
    number: f"SIG{name}"
    for names in (
        {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1"},
        {11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP"},
        {20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH"},
        {29: "IO", 30: "PWR", 31: "SYS"},
    )
    for number, name in names.items()
}
_STATUSES: Final = {
    1: "an uncaught exception or an error of its own",
    2: "wrong arguments",
    126: "the command cannot be executed",
    127: "the command or a library that it needs was not found",
}
_SHELL: Final = 128
_FRAMES_TOLD: Final = 4
_TEXT_CHARS: Final = 300
_LINE_END: Final = "\n"


def signal_name(signum: int) -> str:
    """Return the name of a signal, such as `SIGSEGV`."""
    return _NAMES.get(signum, f"signal {signum}")


def ending_of(status: int, *, age_s: float = 0.0, finished: bool = False, fenced: bool = False) -> Ending:
    """Return the ending for a status as in Python's subprocess: negative for a signal."""
    exited, signum = (status, None) if status >= 0 else (None, -status)
    return Ending(exited, signum, age_s, finished, fenced)


def in_words(status: int) -> str:
    """Return an exit status as torchrun reports it. A negative status is a signal."""
    if status >= 0:
        return f"exit code {status}"
    return f"signal {-status}" + (f" ({_NAMES[-status]})" if -status in _NAMES else "")


def cause(evidence: Evidence, status: int, said: str = "") -> str:
    """Return how a process has ended, or is ending, and the reason, as far as they are known.

    `said` is the process's own report of its error; "" if it made none.
    """
    after = f": {said}" if said and status else ""
    error = evidence.end.error
    if status > 0 and error is not None and error.main and error.where:
        text = error.text.partition(_LINE_END)[0][:_TEXT_CHARS]
        twice = said.startswith(text.removesuffix("."))  # the process's own report has this text already
        return f"{in_words(status)} at {error.where}" + (f" ({text})" if text and not twice else "") + after
    return in_words(status) + (_cause(evidence, -status) if status < 0 else "") + after


def error_of(evidence: Evidence, status: int, said: str = "") -> str:
    """Return only the error that ended a process, and where it was raised; "" if no error is known to have ended it."""
    error = evidence.end.error
    if status > 0 and error is not None and error.main and error.where:
        return f"{error.where}: {said or error.text.partition(_LINE_END)[0][:_TEXT_CHARS]}"
    return said if status else ""


def died_of(evidence: Evidence) -> int | None:
    """Return the signal that ended the process, as far as is known; None if none did, or if the process lives."""
    ending, fatal = evidence.end.ending, evidence.end.fatal
    if ending is not None and ending.signum is not None:
        return ending.signum
    if ending is not None and ending.status is not None and ending.status - _SHELL in _NAMES:
        return ending.status - _SHELL
    return fatal.signum if fatal is not None and not fatal.handled and evidence.gone else None


def faulted(evidence: Evidence) -> bool:
    """Return whether it died of its own native code's action, and not of a signal from another process."""
    fatal = evidence.end.fatal
    sent = fatal is not None and fatal.sender is not None and not _itself(evidence, fatal.sender)
    return died_of(evidence) in NATIVE_FAULTS and not sent


def killed_for_memory(evidence: Evidence) -> bool:
    """Return whether the OOM killer has struck in its cgroup, and it died of SIGKILL or of a cause not known yet."""
    struck = evidence.cgroup is not None and bool(evidence.cgroup.oom_kills)
    return struck and evidence.gone and (died_of(evidence) == SIGKILL or _unexplained(evidence))


def _unexplained(evidence: Evidence) -> bool:
    return evidence.end.ending is None and evidence.end.fatal is None and evidence.end.error is None


def _itself(evidence: Evidence, sender: Sender) -> bool:
    return evidence.process is not None and evidence.process.pid == sender.pid


def explain(evidence: Evidence) -> str:
    """Describe for people how a process ended: by which signal or status, by whom, and where. It must have ended."""
    signum, ending = died_of(evidence), evidence.end.ending
    if signum is not None:
        return f"{signal_name(signum)} (exit code {_SHELL + signum}){_cause(evidence, signum)}"
    if ending is not None and ending.status is not None:
        meaning = _STATUSES.get(ending.status)
        return f"exit code {ending.status}" + (f" ({meaning})" if meaning and evidence.end.error is None else "")
    return "an end whose status is not known yet"


def _cause(evidence: Evidence, signum: int) -> str:
    sender = _sender(evidence, signum)
    if killed_for_memory(evidence) and evidence.cgroup is not None:
        return f": {out_of_memory(evidence.cgroup)}"
    if sender is not None and _itself(evidence, sender):
        return ", sent by itself" if signum != SIGABRT else f": abort() was called{_place(evidence, signum)}"
    if sender is not None:
        return f", sent by {describe(sender)}"
    meaning = NATIVE_FAULTS.get(signum, "abort() was called" if signum == SIGABRT else "")
    return (f": {meaning}" if meaning else "") + _place(evidence, signum)


def _sender(evidence: Evidence, signum: int) -> Sender | None:
    fatal = evidence.end.fatal
    noted = fatal.sender if fatal is not None and fatal.signum == signum else None
    return evidence.end.terminated_by if noted is None and signum == SIGTERM else noted


def _place(evidence: Evidence, signum: int) -> str:
    fatal = evidence.end.fatal
    if fatal is None or fatal.signum != signum:
        return ""
    parts = [
        f"at address 0x{fatal.address:x}" if fatal.address is not None else "",
        f"in thread {fatal.thread}" if fatal.thread else "",
    ]
    trace = " < ".join(fatal.frames[:_FRAMES_TOLD])
    return "".join(f" {part}" for part in parts if part) + (f"; backtrace {trace}" if trace else "")


def out_of_memory(cgroup: Cgroup) -> str:
    """Describe the kills of the kernel's OOM killer in this cgroup."""
    kills = cgroup.oom_kills or 0
    times = "once" if kills == 1 else f"{kills} times"
    limit = f", whose limit is {size(cgroup.limit_bytes)}" if cgroup.limit_bytes else ""
    return f"the kernel's OOM killer has struck {times} in its cgroup{limit} (oom_kill {kills})"


def describe(sender: Sender) -> str:
    """Return `torchrun, pid 812, uid 0`."""
    return ", ".join(part for part in (sender.name, f"pid {sender.pid}", f"uid {sender.uid}") if part)


def size(count: int) -> str:
    """Return a number of bytes for people, such as `4 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def may_be_told_to_end(ending: Ending) -> bool:
    """Return whether it ended with SIGTERM, which a launcher sends to the others when one process has failed."""
    return SIGTERM in (ending.signum, (ending.status or 0) - _SHELL)
