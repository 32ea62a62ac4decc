"""Texts of a diagnosis: one for each kind of fault, and the sentences for the job's log.

Rules:

1. Each kind has one template, so a fault reads the same wherever it is reported.
2. Unknown numbers are left out, not guessed.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final

from taskd.core.diagnosis.endings import describe, explain, out_of_memory
from taskd.core.diagnosis.endings import size as amount
from taskd.core.diagnosis.evidence import Child, Collective, Evidence
from taskd.core.diagnosis.findings import Finding, Kind, names
from taskd.wire.kinds import JobRank

_TOLD_APART: Final = 4


def operation(call: Collective) -> str:
    """Return `allreduce 57 of communicator 1f2e (4 MiB)`, or `recv with its rank 3 of …` for a transfer."""
    name = call.op.name.lower().replace("_", "-")
    which = f" {call.number}" if call.number else f" with its rank {call.peer}" if call.peer >= 0 else ""
    more = (amount(call.bytes) if call.bytes else "", f"root {call.peer}" if call.number and call.peer >= 0 else "")
    told = ", ".join(part for part in more if part)
    return f"{name}{which} of communicator {call.comm & 0xFFFF:04x}" + (f" ({told})" if told else "")


def _ago(age_s: float | None) -> str:
    return f" for {age_s:.1f} s" if age_s is not None else ""


def _frame(known: Evidence) -> str:
    return f", at {known.frames.stack[0]}" if known.frames.stack else ""


def _missing(call: Collective | None) -> str:
    return f"; it has not entered {operation(call)}" if call is not None else ""


def _wchan(known: Evidence) -> str:
    wchan = known.process.wchan if known.process is not None else None
    return f" (in the kernel: {wchan})" if wchan and wchan != "0" else ""


def _error(known: Evidence) -> str:
    error = known.end.error
    if error is None:
        return "an error that is not known"
    return error.text + (f", at {error.where}" if error.where else "")


def _clock(known: Evidence, name: str) -> str:
    return _ago(getattr(known.clocks, name) if known.clocks is not None else None)


def _child(child: Child) -> str:
    told = ", ".join(part for part in (child.state.value if child.state else "", child.wchan or "") if part)
    return f"{child.pid} ({told})" if told else str(child.pid)


def _children(children: Iterable[Child]) -> str:
    return ", ".join(map(_child, children))


def _memory(known: Evidence) -> str:
    cause = out_of_memory(known.cgroup) if known.cgroup is not None else "the kernel's OOM killer has struck"
    return (
        f"has lost a child: {cause}; {_error(known)}"
        if known.end.error is not None
        else f"was killed for memory: {cause}"
    )


def _data(known: Evidence) -> str:
    children = known.process.children if known.process is not None else ()
    return f"waits{_ago(known.blockers.data_wait_s)} for its data loader" + (
        f", whose processes are {_children(children)}" if children else ""
    )


def _lock_file(known: Evidence) -> str:
    file = known.blockers.lock_file
    return f"waits for the lock file {file.path}: {file.owner}" if file is not None else ""


def _loss(known: Evidence) -> str:
    seen = known.non_finite
    return f"had {seen.what} {seen.value} in step {seen.step}" if seen is not None else ""


def _slow(known: Evidence) -> str:
    pace = known.pace
    return f"needs {pace.own_s:.3g} s of its own for a step (over {pace.steps} steps)" if pace is not None else ""


def _loading(known: Evidence) -> str:
    return f"waits {known.pace.data_s:.3g} s for the data of a step" if known.pace is not None else ""


def _orphans(known: Evidence) -> str:
    orphans = known.process.orphans if known.process is not None else ()
    return f"has left {len(orphans)} child process{'es' * (len(orphans) != 1)} without a parent: {_children(orphans)}"


def _asked(known: Evidence) -> str:
    """Return a clause with the sender of a SIGTERM that the program handled in its own way; "" if there is none."""
    sender = known.end.terminated_by
    return f", after a SIGTERM sent by {describe(sender)}" if sender is not None else ""


def _busy(known: Evidence) -> str:
    busy = known.process.busy if known.process is not None else None
    return f" ({busy:.0%} of a core)" if busy is not None else ""


WORDS: Final[Mapping[Kind, Callable[[Evidence], str]]] = {
    Kind.OOM_CGROUP: _memory,
    Kind.OOM_DEVICE: lambda e: f"ran out of device memory: {_error(e)}",
    Kind.OOM_HOST: lambda e: f"ran out of host memory: {_error(e)}",
    Kind.DISK_FULL: lambda e: (
        f"found no space left on {e.blockers.full_disk or 'a file system'}"
        + (f": {_error(e)}" if e.end.error else _frame(e))
    ),
    Kind.CRASHED: lambda e: f"crashed in native code: {explain(e)}",
    Kind.KILLED: lambda e: f"was killed by {explain(e)}",
    Kind.ABORTED: lambda e: f"aborted: {explain(e)}",
    Kind.EXCEPTION: lambda e: f"raised {_error(e)}",
    Kind.EXITED: lambda e: (
        f"ended with {explain(e)}{_asked(e)}" if e.end.ending is not None else f"leaves: {_error(e)}"
    ),
    Kind.EXITED_EARLY: lambda e: f"ended with exit code 0 before the training was over{_asked(e)}",
    Kind.DYING: lambda _: "is dying: its process ends, and the kernel is still taking it down",
    Kind.OP_MISMATCH: lambda _: "made another call than the others",
    Kind.SIZE_MISMATCH: lambda _: "passed another size than the others",
    Kind.SKIPPED: lambda _: "left out a collective that the others make",
    Kind.FROZEN: lambda _: "is frozen by its cgroup's freezer",
    Kind.STOPPED: lambda _: "is stopped (SIGSTOP, or a debugger)",
    Kind.UNINTERRUPTIBLE: lambda e: f"is in uninterruptible sleep{_wchan(e)}",
    Kind.GIL_HELD: lambda e: f"has native code that holds the GIL{_clock(e, 'gil_s')}{_frame(e)}",
    Kind.LOCK_FILE: _lock_file,
    Kind.DATA_BLOCKED: _data,
    Kind.DEADLOCK: lambda e: f"waits for a lock{_clock(e, 'main_s')}{_wchan(e)}{_frame(e)}",
    Kind.BLOCKED: lambda e: f"is blocked in a native call{_clock(e, 'main_s')}{_wchan(e)}{_frame(e)}",
    Kind.LOOP: lambda e: f"runs Python code without getting on{_busy(e)}{_frame(e)}",
    Kind.DEVICE_BEHIND: lambda e: (
        f"waits for its device{_clock(e, 'main_s')}, on which no kernel of NCCL runs{_frame(e)}"
    ),
    Kind.BEHIND: lambda e: f"is behind{_frame(e)}",
    Kind.CONNECTION_CUT: lambda _: "is well, and its data do not get through",
    Kind.SILENT: lambda _: "is on a node that nothing is heard from",
    Kind.NON_FINITE: _loss,
    Kind.CORRUPTED: lambda _: "holds another state than its replicas",
    Kind.ORPHANED: _orphans,
    Kind.SLOW: _slow,
    Kind.SLOW_NODE: _slow,
    Kind.SLOW_LOADING: _loading,
    Kind.SLOW_NETWORK: lambda _: "waits longer in collectives than before",
    Kind.UNEVEN: _slow,
    Kind.STALLED: lambda _: "makes no progress",
    Kind.WAITING: lambda _: "waits for somebody else",
    Kind.COLLATERAL: lambda e: f"has failed because of that: {_error(e) if e.end.error else explain(e)}",
}


def finding(rank: JobRank, kind: Kind, known: Evidence, missing: Collective | None = None, more: str = "") -> Finding:
    """Return the finding against a rank, with the operation that it has not entered."""
    return Finding(rank, kind, WORDS[kind](known) + more + _missing(missing))


def who(rank: JobRank, known: Evidence | None) -> str:
    """Return `rank 2 (node 0, pid 4242, step 41)`, without the parts that are not known."""
    if known is None:
        return f"rank {rank}"
    step = known.position.step
    parts = (
        f"node {known.node}" if known.node is not None else "",
        f"pid {known.process.pid}" if known.process is not None else "",
        f"step {step}" if step is not None and step >= 0 else "",
    )
    told = ", ".join(part for part in parts if part)
    return f"rank {rank} ({told})" if told else f"rank {rank}"


def culprits_text(facts: Iterable[Finding], evidence: Mapping[JobRank, Evidence]) -> str:
    """Return the texts on all culprits, one after another.

    Many culprits of one kind share one text, which has the details of the first.
    """
    sentences = []
    for kind, group in groupby(facts, key=lambda fact: fact.kind):
        findings = list(group)
        if len(findings) <= _TOLD_APART:
            sentences += [f"{who(fact.rank, evidence.get(fact.rank))} {fact.text}" for fact in findings]
        else:
            first = findings[0]
            all_of_them = names(fact.rank for fact in findings)
            sentences.append(f"{all_of_them}: {kind.value}; {who(first.rank, evidence.get(first.rank))} {first.text}")
    return "; ".join(sentences)


def victims_text(waiting: Mapping[JobRank, Collective | None], failed: Iterable[JobRank]) -> str:
    """Return the sentence on the victims.

    It names the ranks that wait, with the operation that was entered longest ago, and the ranks that have failed.
    """
    parts = []
    if waiting:
        calls = [call for call in waiting.values() if call is not None]
        longest = max(calls, key=lambda call: call.entered_s or 0.0, default=None)
        inside = f" in {operation(longest)}{_ago(longest.entered_s)}" if longest is not None else ""
        parts.append(f"{names(waiting)} {'wait' if len(waiting) > 1 else 'waits'}{inside}")
    fallen = tuple(failed)
    if fallen:
        parts.append(f"{names(fallen)} {'have' if len(fallen) > 1 else 'has'} failed because of that")
    return "; ".join(parts)
