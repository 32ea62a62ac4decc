"""The page of one fault: its culprits and the reason, the recoveries, the state of each rank, and stacks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType

from taskd.cli.tables import ALARM, GOOD, QUIET, VICTIM, Listing, Row, block, heading, line, pairs, span, wall
from taskd.core.diagnosis.account import operation
from taskd.core.diagnosis.endings import died_of, signal_name
from taskd.core.diagnosis.evidence import Collective, Evidence, Frames, RunState
from taskd.core.diagnosis.findings import PACES, Kind, names
from taskd.runtime.records.entries import DiagnosisEntry, RecoveryEntry
from taskd.runtime.records.faultfile import FaultFile
from taskd.runtime.records.timeline import FaultEntry
from taskd.wire.kinds import JobRank

REPORTED: Final = frozenset(kind.name for kind in (Kind.NON_FINITE, Kind.CORRUPTED, Kind.ORPHANED, *PACES))
"""Kinds that are reported but not recovered from by default."""
_WHY: Final = ". Why: "
"""Separator between the event and its reason in a diagnosis's sentence."""
_FACTS: Final = 8
_INEXACT: Final = 4
_RANKS: Final = 32
_FRAMES: Final = 12
_STACKS: Final = 4
_NATIVE_LINES: Final = 40
_LIBRARIES: Final = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen ",
    "/taskd/adaptors/",
    "/taskd/python/",
)
_ASKED_S: Final = 1.0
_STATES: Final = {
    RunState.UNINTERRUPTIBLE: "uninterruptible",
    RunState.ZOMBIE: "dying",
    RunState.DEAD: "dying",
}


def title(fault: FaultEntry) -> str:
    """Return the title of a fault, in the words of its diagnosis."""
    if fault.diagnosis is not None:
        return fault.diagnosis.title or fault.diagnosis.kind
    if fault.number == 0:
        return "planned"
    return "; ".join(
        dict.fromkeys(cause or "cause unknown" for one in fault.recoveries for cause in one.causes.values())
    )


def outcome(fault: FaultEntry, *, recovering: bool) -> str:
    """Return the outcome of a fault, in a word or two.

    `recovering`: the job is being recovered from its newest fault.
    """
    if fault.recoveries:
        return ", ".join(one.strategy for one in fault.recoveries)
    if is_reported(fault):
        return "reported only"
    if fault.closed:
        return "not recovered"
    return "under way" if recovering else "reported only"


def outcome_style(fault: FaultEntry, *, recovering: bool) -> str:
    """Return the style in which a fault's outcome is shown."""
    if any({"total", "started"} & one.phases_ms.keys() for one in fault.recoveries):
        return GOOD
    return ALARM if outcome(fault, recovering=recovering) == "not recovered" else VICTIM


def told_in_full(faults: Sequence[FaultEntry], *, everything: bool) -> list[FaultEntry]:
    """Return the faults to show in full: all, or the newest one.

    If the newest fault was only reported, the newest fault that was not comes before it.
    """
    if everything:
        return list(faults)
    real = [fault for fault in faults if fault.number]
    newest = real[-1:] or list(faults[-1:])
    if newest and is_reported(newest[0]):
        newest = [fault for fault in real if not is_reported(fault)][-1:] + newest
    return newest


def is_reported(fault: FaultEntry) -> bool:
    """Return whether a fault was only reported: its kind is in `REPORTED`, and no recovery was made."""
    return not fault.recoveries and fault.diagnosis is not None and fault.diagnosis.kind in REPORTED


def phases(recovery: RecoveryEntry) -> str:
    """Return the duration of each phase of a recovery in milliseconds, without the total."""
    return " · ".join(f"{name} {ms:.0f}" for name, ms in recovery.phases_ms.items() if name not in ("total", "started"))


def fault_page(
    fault: FaultEntry, record: FaultFile | None, *, recovering: bool, everything: bool
) -> Iterator[RenderableType]:
    """Yield the whole page. Without `everything`, only the beginning of long parts."""
    blamed = names(fault.culprits) if fault.culprits else "nobody can be blamed"
    if fault.number:
        yield heading(f"Fault {fault.number}: {title(fault).upper()} · {blamed}", ALARM)
    else:
        yield heading("Planned, nothing had failed")
    yield pairs(_facts(fault, recovering=recovering, everything=everything))
    if record is None:
        return
    if record.problem:
        yield heading(f"No evidence: {record.file}: {record.problem}", VICTIM)
    if record.unread:
        told = ", ".join(record.unread[:_RANKS])
        yield line(f"The evidence of these ranks is damaged, or of a newer taskd: {told}", VICTIM)
    if record.evidence:
        yield from _ranks(fault, record.evidence, everything=everything)
        yield from _stacks(fault, record.evidence, everything=everything)


def _kind(name: str) -> str:
    return Kind[name].value if name in Kind.__members__ else name


def _facts(fault: FaultEntry, *, recovering: bool, everything: bool) -> Iterator[tuple[str, str]]:
    diagnosis = fault.diagnosis
    if diagnosis is not None:
        what, _, why = diagnosis.sentence.rpartition(_WHY)
        yield "what", what + "." * bool(what) or why
        yield "why", why if what else ""
        yield from _seen(diagnosis, everything=everything)
    found = (
        f", diagnosis after {span(diagnosis.took_s)}" if diagnosis is not None and diagnosis.took_s is not None else ""
    )
    changed = f" (changed {fault.changes} times)" if fault.changes else ""
    step = f", after step {fault.step}" if fault.step is not None and fault.step >= 0 else ""
    yield "when", f"{wall(fault.unix_s) or 'time not known'}{step}{found}{changed}"
    if diagnosis is not None and diagnosis.victims:
        yield "victims", names(diagnosis.victims)
    if diagnosis is not None and diagnosis.hang is not None:
        yield "hang", _hang(diagnosis)
    if not fault.recoveries:
        yield "done", outcome(fault, recovering=recovering)
    for one in fault.recoveries:
        for setback in one.setbacks:
            yield "failed", setback
        yield "done", _done(one)
        yield "phases, ms", phases(one)


def _seen(diagnosis: DiagnosisEntry, *, everything: bool) -> Iterator[tuple[str, str]]:
    """Yield the facts that the diagnosis's sentence does not contain, or all facts."""
    facts = [fact for fact in diagnosis.facts if everything or fact.text not in diagnosis.sentence]
    for fact in facts if everything else facts[:_FACTS]:
        yield "fact", f"rank {fact.rank}, {_kind(fact.kind)}: {fact.text}"
    if not everything and len(facts) > _FACTS:
        yield "", f"… {len(facts) - _FACTS} more with --all"


def _hang(diagnosis: DiagnosisEntry) -> str:
    hang = diagnosis.hang
    assert hang is not None, "asked for one"
    known = (("silent for", hang.silent_s), ("limit", hang.limit_s), ("usual step", hang.usual_s))
    told = ", ".join(f"{name} {span(value)}" for name, value in known if value is not None)
    return told if hang.reason in diagnosis.sentence else f"{hang.reason} ({told})" if told else hang.reason


def _done(one: RecoveryEntry) -> str:
    total, started = one.phases_ms.get("total"), one.phases_ms.get("started")
    took = f" in {total:.0f} ms" if total is not None else ""
    if started is not None:
        took = f", which ran after {started:.0f} ms"
    new = (
        f", {names(map(int, one.replaced))} replaced" if one.replaced and all(map(str.isdecimal, one.replaced)) else ""
    )
    kept = f", {len(one.kept)} kept" if one.kept else ""
    at = f", on with step {one.target_step + 1}" if one.target_step is not None and one.target_step >= 0 else ""
    at += f" ({one.steps_redone} steps done again)" if one.steps_redone else ""
    at += "".join(f"; not exact: rank {rank}: {text}" for rank, text in [*one.inexact.items()][:_INEXACT])
    why = f": {one.reason}" if one.reason else ""
    return f"{one.strategy}{' (all processes anew)' if one.restart else ''}{took}{new}{kept}{at}{why}"


def _ranks(fault: FaultEntry, evidence: dict[JobRank, Evidence], *, everything: bool) -> Iterator[RenderableType]:
    victims = frozenset(fault.diagnosis.victims if fault.diagnosis is not None else ())
    order = sorted(evidence, key=lambda rank: (rank not in fault.culprits, rank not in victims, rank))
    shown = order if everything else order[:_RANKS]
    yield heading("Ranks, as they were then")
    columns = (
        ">rank",
        ">node",
        ">pid",
        "",
        "state",
        ">step",
        "doing",
        "waits in",
        ">for",
        ">step takes",
        ">its own",
        "main thread at",
        "inside",
    )
    rows = [_rank(rank, evidence[rank], fault.culprits, victims) for rank in shown]
    if len({known.node for known in evidence.values()}) == 1:
        rows = [((*cells[:1], "", *cells[2:]), style) for cells, style in rows]
    yield Listing(columns, rows, spare=("inside", "doing", "main thread at", ">step", ">node"), wide=("waits in",))
    if len(shown) < len(order):
        yield block([f"… {len(order) - len(shown)} more with --all"], QUIET)


def _rank(rank: JobRank, known: Evidence, culprits: Sequence[JobRank], victims: frozenset[JobRank]) -> Row:
    role = "culprit" if rank in culprits else "victim" if rank in victims else ""
    call = waits_in(known)
    waits, for_s = _short(call) if call is not None else "", call.entered_s if call is not None else None
    if call is None and known.blockers.data_wait_s is not None:
        waits, for_s = "its data loader", known.blockers.data_wait_s
    elif call is None and known.calls.kernel_s:
        waits, for_s = "NCCL on its device", known.calls.kernel_s
    position = known.position
    cells = (
        str(rank),
        str(known.node) if known.node is not None else "",
        str(known.process.pid) if known.process is not None else "",
        role,
        state(known),
        str(position.step) if position.step is not None else "",
        position.standing.value if position.standing is not None else "",
        waits,
        span(for_s),
        span(known.pace.step_s) if known.pace is not None else "",
        span(known.pace.own_s) if known.pace is not None else "",
        *_place(known.frames.stack),
    )
    return cells, {"culprit": ALARM, "victim": VICTIM}.get(role, "")


def _place(stack: Sequence[str]) -> tuple[str, str]:
    """Return the innermost frame of the job's own code, and the innermost frame of all if that is a library's."""
    own = next((frame for frame in stack if not any(part in frame for part in _LIBRARIES)), "")
    inside = stack[0] if stack and stack[0] != own else ""
    return own.rpartition("/")[2], inside.rpartition("/")[2]


def _short(call: Collective) -> str:
    return operation(call).replace(" communicator ", " ")


def waits_in(known: Evidence) -> Collective | None:
    """Return the open collective that a rank entered first, or None."""
    opened = (call for call in known.calls.collectives if call.open)
    return max(opened, key=lambda call: call.entered_s or 0.0, default=None)


def state(known: Evidence) -> str:
    """Return the state of a rank's process, in a few words."""
    signum, ending, process = died_of(known), known.end.ending, known.process
    if signum is not None:
        return signal_name(signum)
    if ending is not None and ending.status is not None:
        return f"exit code {ending.status}"
    if known.gone:
        return "dying"
    if known.cgroup is not None and known.cgroup.frozen:
        return "frozen"
    clocks = known.clocks
    if clocks is not None and clocks.gil_s is not None and clocks.gil_s >= _ASKED_S:
        return f"GIL held, {span(clocks.gil_s)}"
    if process is None or process.state is None:
        return ""
    return _STATES.get(process.state, process.state.name.lower())


def _stacks(fault: FaultEntry, evidence: dict[JobRank, Evidence], *, everything: bool) -> Iterator[RenderableType]:
    others = () if fault.culprits and not everything else sorted(evidence.keys() - set(fault.culprits))
    ranks = [rank for rank in (*fault.culprits, *others) if rank in evidence]
    told = [rank for rank in ranks if evidence[rank].frames != Frames()]
    for rank in told if everything else told[:_STACKS]:
        frames = evidence[rank].frames
        if everything and frames.threads:
            for thread in frames.threads:
                yield heading(f"Python stack of rank {rank}, thread {thread.name}, innermost first")
                yield from _cut(thread.stack, len(thread.stack))
        elif frames.stack:
            yield heading(f"Python stack of rank {rank}, main thread, innermost first")
            yield from _cut(frames.stack, len(frames.stack) if everything else _FRAMES)
        if frames.native:
            lines = frames.native.rstrip().split("\n")
            yield heading(f"py-spy of rank {rank}")
            yield from _cut(lines, len(lines) if everything else _NATIVE_LINES)
    if not everything and len(told) > _STACKS:
        yield block([f"… the stacks of {len(told) - _STACKS} more ranks with --all"], QUIET)


def _cut(lines: Sequence[str], most: int) -> Iterable[RenderableType]:
    yield block(lines[:most])
    if len(lines) > most:
        yield block([f"… {len(lines) - most} more with --all"], QUIET)
