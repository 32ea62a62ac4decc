"""The page of a job: its state, its faults in one table, the newest fault in full, and its living ranks."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from taskd.cli.fault_page import fault_page, outcome, outcome_style, phases, title, told_in_full
from taskd.cli.tables import (
    ALARM,
    GOOD,
    HEAD,
    QUIET,
    VICTIM,
    Cell,
    Listing,
    Row,
    heading,
    line,
    pairs,
    since,
    span,
    wall,
)  # fmt: skip
from taskd.core.diagnosis.findings import names
from taskd.core.recovery import Phase
from taskd.runtime.records.faultfile import FaultFile
from taskd.runtime.records.selfcheck import CheckOutcome
from taskd.runtime.records.snapshot import BoxSnapshot
from taskd.runtime.records.timeline import FaultEntry, KeptBox, Timeline

_FAULTS: Final = 10
_SILENT_S: Final = 1.0
_RECOVERING: Final = frozenset(
    phase.value for phase in (Phase.PAUSING, Phase.JOINING, Phase.RESUMING, Phase.RESTARTING)
)
Evidenced = Callable[[FaultEntry], FaultFile | None]
Kept = Sequence[tuple[KeptBox, BoxSnapshot | None]]
"""Kept black boxes, each with its snapshot; None if the box cannot be read."""


def job_page(
    job: Timeline, ranks: Sequence[BoxSnapshot], kept: Kept, read: Evidenced, *, everything: bool
) -> Iterator[RenderableType]:
    """Yield the page of a job. Without `everything`, only the newest fault in full, and the newest rows of tables."""
    running, recovering = is_running(job, ranks), is_recovering(job)
    yield _title(job, running=running)
    yield pairs(_facts(job, ranks, running=running))
    if job.faults:
        yield from _table(job.faults, recovering=recovering, everything=everything)
    else:
        yield heading("No fault is recorded.", GOOD)
    for fault in told_in_full(job.faults, everything=everything):
        yield from fault_page(fault, read(fault), recovering=recovering, everything=everything)
    if ranks:
        yield from _living(ranks)
    if kept:
        yield from _kept(kept if everything else kept[-_FAULTS:], len(kept))


def is_running(job: Timeline, ranks: Sequence[BoxSnapshot]) -> bool:
    """Return whether no end of the job is recorded, and one of its ranks lives on this machine."""
    return job.ended is None and any(rank.state == "alive" for rank in ranks)


def is_recovering(job: Timeline) -> bool:
    """Return whether the job's newest directive serves a recovery."""
    return job.ended is None and job.phase in _RECOVERING


def jobs_table(jobs: Sequence[Timeline]) -> Iterator[RenderableType]:
    """Yield the table of several jobs in one run directory, the newest first."""
    yield line(f"{len(jobs)} jobs; the newest is shown below, another with: taskd blackbox FOLDER", HEAD)
    columns = ("job", "started", "ended", ">faults", "folder")
    yield Listing(columns, [(_job(job), "" if job.ended is None else QUIET) for job in jobs], wide=("folder",))
    yield Text()


def _job(job: Timeline) -> Sequence[Cell]:
    ended = f"{wall(job.ended.unix_s)}, exit code {job.ended.exit_code}" if job.ended is not None else "no end recorded"
    return job.job_id, wall(job.started_unix_s), ended, str(len(job.faults)), job.folder


def _title(job: Timeline, *, running: bool) -> Text:
    told = line(f"job {job.job_id} · ", HEAD)
    if job.ended is not None:
        failed = job.ended.exit_code != 0
        return told.append_text(line(f"ended with exit code {job.ended.exit_code}", ALARM if failed else GOOD))
    return told.append_text(line("running", GOOD) if running else line("no end recorded, no rank of it here", VICTIM))


def _facts(job: Timeline, ranks: Sequence[BoxSnapshot], *, running: bool) -> Iterator[tuple[str, Cell]]:
    yield "folder", job.folder
    yield "started", since(job.started_unix_s) + (f", {job.managers} managers since" if job.managers > 1 else "")
    if job.ended is not None:
        yield "ended", since(job.ended.unix_s)
        yield "reason", line(job.ended.reason, ALARM if job.ended.exit_code else "")
    elif not running:
        yield "last record", since(job.newest_unix_s)
    if running:
        steps = [rank.step for rank in ranks if rank.step is not None]
        missing = len(job.pids) - len(ranks)
        elsewhere = f", {missing} more on other nodes" if missing > 0 else ""
        yield "now", f"{len(ranks)} ranks here{elsewhere}, newest step {max(steps, default=-1)}"
    if job.self_check is not None:
        exact = job.self_check.outcome is CheckOutcome.EXACT
        yield "self-check", line(job.self_check.text, GOOD if exact else VICTIM)
    recovering = is_recovering(job)
    for fault in told_in_full(job.faults, everything=False):
        blamed = f" · {names(fault.culprits)}" if fault.culprits else ""
        told = line(f"{fault.number or '-'}: {title(fault)}{blamed} · ", ALARM if fault.number else "")
        came = line(outcome(fault, recovering=recovering), outcome_style(fault, recovering=recovering))
        yield "last fault", told.append_text(came)
    if job.damaged_lines:
        yield "journal", line(f"{job.damaged_lines} damaged lines were skipped", VICTIM)
    for what in job.omitted:
        yield "left out", line(what, VICTIM)


def _table(faults: Sequence[FaultEntry], *, recovering: bool, everything: bool) -> Iterator[RenderableType]:
    shown = faults if everything else faults[-_FAULTS:]
    yield heading("Faults" + (f", the newest {len(shown)} of {len(faults)}" if len(shown) < len(faults) else ""))
    columns = (">#", "when", ">step", "diagnosis", "culprit", ">found in", "done", ">total ms", "phases, ms")
    rows = [_fault(fault, recovering=recovering) for fault in shown]
    yield Listing(columns, rows, spare=("phases, ms", ">found in", ">step", ">total ms"), wide=("diagnosis",))


def _fault(fault: FaultEntry, *, recovering: bool) -> Row:
    cells = (
        str(fault.number or "-"),
        wall(fault.unix_s),
        str(fault.step) if fault.step is not None and fault.step >= 0 else "",
        title(fault),
        names(fault.culprits) if fault.culprits else "",
        span(fault.diagnosis.took_s) if fault.diagnosis is not None else "",
        line(outcome(fault, recovering=recovering), outcome_style(fault, recovering=recovering)),
        f"{fault.total_ms:.0f}" if fault.total_ms is not None else "",
        phases(fault.recoveries[-1]) if fault.recoveries else "",
    )
    return cells, ""


def _living(ranks: Sequence[BoxSnapshot]) -> Iterator[RenderableType]:
    yield heading("Ranks on this machine now; taskd blackbox PID")
    columns = (">rank", ">pid", "state", ">step", ">committed", "phase", "waits in", ">for", "main thread")
    yield Listing(columns, [_rank(rank) for rank in ranks], spare=("phase", ">pid"), wide=("waits in",))


def _kept(kept: Kept, total: int) -> Iterator[RenderableType]:
    folder = Path(kept[0][0].file).parent
    yield heading(f"Black boxes of its dead, {len(kept)} of {total}; taskd blackbox {folder}/FILE")
    columns = (">rank", ">pid", "ended", ">step", "how", "file")
    yield Listing(columns, [_dead(box, one) for box, one in kept], spare=(">pid", ">step"), wide=("how",))


def _dead(box: KeptBox, one: BoxSnapshot | None) -> Row:
    name = Path(box.file).name
    if one is None:
        return (str(box.rank), "", "", "", "cannot be read", name), VICTIM
    step = str(one.step) if one.step is not None else ""
    return (str(box.rank), str(one.pid), wall(one.at_unix_s), step, one.how.partition(";")[0], name), ""


def _rank(one: BoxSnapshot) -> Row:
    waits = max((call for call in one.collectives if call.open), key=lambda call: call.lasted_s or 0.0, default=None)
    stands = one.ages == "now" and (one.clocks.native_s or 0.0) > _SILENT_S
    state = one.process.state if one.state == "alive" and one.process is not None else one.state
    cells = (
        str(one.rank),
        str(one.pid),
        state,
        str(one.step) if one.step is not None else "",
        f"{span(one.step_s)} ago" if one.step_s is not None else "",
        one.phase,
        f"{waits.operation} {waits.number or ''}" if waits is not None else "",
        span(waits.lasted_s) if waits is not None else "",
        f"no Python for {span(one.clocks.main_s)}" if (one.clocks.main_s or 0.0) > _SILENT_S else "",
    )
    return cells, ALARM if stands or one.state == "dead" else ""
