"""The page of one process: its identity, its end, its state, and its collectives."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from taskd.cli.tables import (
    ALARM,
    GOOD,
    QUIET,
    VICTIM,
    Cell,
    Listing,
    Row,
    ago,
    block,
    heading,
    line,
    lines,
    pairs,
    since,
    span,
)
from taskd.core.diagnosis.endings import describe, size
from taskd.runtime.records.lookup import ProcessView
from taskd.runtime.records.snapshot import BoxSnapshot, ClocksView, CollectiveView, SignalView

FEW: Final = 12
_FRAMES: Final = 12
_STANDS_S: Final = 1.0
"""Seconds without an answer after which a process or a thread counts as stuck.

The native thread beats five times a second. A thread that holds the GIL answers a request within a bytecode.
"""


def process_page(one: BoxSnapshot, *, everything: bool) -> Iterator[RenderableType]:
    """Yield the page of a process. Without `everything`, long lists are shortened."""
    yield _title(one)
    if one.how:
        yield line(one.how[0].upper() + one.how[1:], ALARM if _failed(one) else GOOD)
    trouble = _trouble(one)
    if trouble:
        yield line(trouble + (f", before {one.ages}" if one.ages != "now" else ""), VICTIM)
    yield pairs(_facts(one))
    if one.fatal is not None and one.fatal.frames:
        yield from _backtrace(one.fatal, everything=everything)
    if one.communicators:
        yield heading("Communicators")
        columns = ("id", "backend", ">rank", ">of", ">newest", f">opened{_before(one)}", "state")
        yield Listing(columns, list(_communicators(one)), spare=("backend",))
    yield from _collectives(one, everything=everything)


def _failed(one: BoxSnapshot) -> bool:
    return one.exit_status != 0


def _title(one: BoxSnapshot) -> Text:
    who = f"rank {one.rank}" if one.state != "not claimed" else "no process yet"
    style = {"alive": GOOD, "dead": ALARM if _failed(one) else GOOD}.get(one.state, VICTIM)
    told = f" · pid {one.pid} · incarnation {one.incarnation}" if one.pid else ""
    return line(f"{who}{told} · ", "bold").append_text(line(one.state, style))


def _facts(one: BoxSnapshot) -> Iterator[tuple[str, Cell]]:
    of = one.ages
    yield "box", one.file
    if one.state != "alive":
        known = since(one.at_unix_s) or "not known here: the box is of another machine or boot, or was copied later"
        yield ("ended" if one.state == "dead" else "newest time"), known
    yield "attached", ago(one.attached_s, of) + (f", {one.claims} times (exec)" if one.claims > 1 else "")
    yield "step", _step(one)
    yield "phase", f"{one.phase}, since {span(one.phase_s)}" if one.phase_s is not None else one.phase
    if one.process is not None:
        yield "process", _process(one.process)
    if one.state == "alive":
        yield from _clocks(one.clocks)
    if one.fatal is not None and (one.fatal.handled or one.state != "dead"):
        yield "signal" + (" survived" if one.fatal.handled else ""), _signal(one.fatal, of)
    if one.terminated is not None:
        yield "SIGTERM", _signal(one.terminated, of)
    if one.last_words is not None:
        words = one.last_words
        whose = "" if words.main else " (of another thread than the main one)"
        where = f"\nat {words.where}" if words.where else ""
        yield "exception", lines(f"{words.kind}: {words.message}{whose}, {ago(words.age_s, of)}{where}")


def _step(one: BoxSnapshot) -> str:
    return f"{one.step}, committed {ago(one.step_s, one.ages)}" if one.step is not None else "none committed"


def _process(process: ProcessView) -> str:
    where = f" in {process.wchan}" if process.wchan else ""
    return f"{process.state}{where}, {process.threads} threads, {size(process.rss_bytes)} resident ({process.command})"


def _clocks(clocks: ClocksView) -> Iterator[tuple[str, Cell]]:
    """Yield the answers of a living process: of its own thread, of the GIL, and of the main thread."""
    if clocks.native_s is not None:
        yield "own thread", line(f"beat {span(clocks.native_s)} ago", ALARM if clocks.native_s > _STANDS_S else "")
    yield "GIL", _answer(clocks.gil_s, "free")
    yield "main thread", _answer(clocks.main_s, "runs Python")


def _answer(waiting_s: float | None, well: str) -> Cell:
    if waiting_s is None:
        return "never asked"
    return line(f"no answer for {span(waiting_s)}", VICTIM) if waiting_s >= _STANDS_S else well


def _trouble(one: BoxSnapshot) -> str:
    """Return the obstacle of a process, as far as its own box shows it; for a dead process, the last one. "": none."""
    clocks, calls = one.clocks, [call for call in one.collectives if call.open]
    if (clocks.native_s or 0.0) > _STANDS_S:
        return f"The whole process stands for {span(clocks.native_s)}: stopped, frozen, or without processor time"
    if (clocks.gil_s or 0.0) >= _STANDS_S:
        return f"Native code holds the GIL for {span(clocks.gil_s)}: no Python can run"
    longest = max(calls, key=lambda call: call.lasted_s or 0.0, default=None)
    if longest is not None and (longest.lasted_s or 0.0) >= _STANDS_S:
        which = f" {longest.number}" if longest.number else ""
        return f"In {longest.operation}{which} of communicator {longest.comm[-4:]} for {span(longest.lasted_s)}"
    if (clocks.main_s or 0.0) >= _STANDS_S:
        return f"The main thread has run no Python for {span(clocks.main_s)}: it is in a native call"
    return ""


def _signal(one: SignalView, of: str) -> str:
    parts = (
        one.signal,
        f"in thread {one.thread or '?'} (tid {one.tid})" if one.tid else "",
        f"for address {one.address}" if one.address is not None else "",
        f"sent by {describe(one.sender)}" if one.sender is not None else "",
        f"{one.count} in all" if one.count > 1 else "",
        ago(one.age_s, of),
    )
    return ", ".join(part for part in parts if part)


def _backtrace(fatal: SignalView, *, everything: bool) -> Iterator[RenderableType]:
    frames = fatal.frames if everything else fatal.frames[:_FRAMES]
    yield heading(
        f"Native backtrace of thread {fatal.thread or fatal.tid}, innermost first (addr2line -e LIBRARY OFFSET)"
    )
    yield block(frames)
    if len(frames) < len(fatal.frames):
        yield block([f"… {len(fatal.frames) - len(frames)} more with --all"], QUIET)


def _communicators(one: BoxSnapshot) -> Iterator[Row]:
    for comm in one.communicators:
        cells = (
            comm.comm[-4:],
            comm.backend,
            _known(comm.rank),
            _known(comm.ranks),
            str(comm.number),
            span(comm.opened_s),
            "closed" if comm.closed else "open",
        )
        yield cells, QUIET if comm.closed else ""


def _collectives(one: BoxSnapshot, *, everything: bool) -> Iterator[RenderableType]:
    if not one.collectives:
        yield heading("No collective was noted" + (f" ({one.dropped} could not be)" if one.dropped else ""))
        return
    newest = one.collectives[:FEW]
    shown = one.collectives if everything else (*newest, *(call for call in one.collectives[FEW:] if call.open))
    more = f", {one.dropped} could not be noted" if one.dropped else ""
    rest = "" if len(shown) == len(one.collectives) else "; more with --all"
    yield heading(f"Newest collectives: {len(shown)} of {one.noted} noted{more}{rest}")
    entered = f">entered{_before(one)}"
    columns = ("", "operation", "backend", "comm", ">number", ">bytes", ">peer", ">lasted", entered)
    yield Listing(columns, [_call(call) for call in shown], spare=("backend", ">peer"))


def _before(one: BoxSnapshot) -> str:
    return " ago" if one.ages == "now" else f" before {one.ages}"


def _call(call: CollectiveView) -> Row:
    cells = (
        "open" if call.open else "",
        call.operation,
        call.backend,
        call.comm[-4:],
        str(call.number or ""),
        size(call.bytes) if call.bytes else "",
        _known(call.peer),
        span(call.lasted_s),
        span(call.entered_s),
    )
    return cells, ALARM if call.open else ""


def _known(number: int) -> str:
    return str(number) if number >= 0 else ""
