"""An agent's knowledge of a process: exit statuses in words, and evidence that is sent unchanged."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import msgspec
import pytest

from taskd.core.diagnosis.conditions import (
    FAILED,
    STANDSTILL,
    STUCK,
    cannot_answer,
    condition_of_end,
    condition_of_hang,
)
from taskd.core.diagnosis.endings import NATIVE_FAULTS, cause, died_of, ending_of, error_of, explain, signal_name, size
from taskd.core.diagnosis.evidence import (
    Cgroup,
    Clocks,
    Ending,
    Evidence,
    FatalSignal,
    Process,
    PythonError,
    RankPosition,
    RunState,
    Sender,
    Standing,
)
from taskd.core.diagnosis.facts import FACTS, flat, in_parts, of_facts
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.operation import Operation
from tests.core.scenarios import FAULTS, Fault, base, but, known_of


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (known_of(ending=Ending(signum=9)), "SIGKILL (exit code 137)"),
        (known_of(ending=Ending(status=137)), "SIGKILL (exit code 137)"),
        (
            known_of(ending=Ending(signum=9), cgroup=Cgroup(oom_kills=3, limit_bytes=3 << 29)),
            (
                "SIGKILL (exit code 137): the kernel's OOM killer has struck 3 times in its cgroup, "
                "whose limit is 1.5 GiB (oom_kill 3)"
            ),
        ),
        (
            known_of(ending=Ending(signum=11), fatal=FatalSignal(11, 0, "python", ("a.so+0x1", "b.so+0x2"))),
            (
                "SIGSEGV (exit code 139): an invalid memory access at address 0x0 in thread python; "
                "backtrace a.so+0x1 < b.so+0x2"
            ),
        ),
        (
            known_of(ending=Ending(signum=15), terminated_by=Sender(812, 0, "torchrun")),
            "SIGTERM (exit code 143), sent by torchrun, pid 812, uid 0",
        ),
        (known_of(ending=Ending(signum=15)), "SIGTERM (exit code 143)"),
        (
            known_of(ending=Ending(signum=6), process=Process(5), fatal=FatalSignal(6, sender=Sender(5, 0))),
            "SIGABRT (exit code 134): abort() was called",
        ),
        (known_of(ending=Ending(signum=40)), "signal 40 (exit code 168)"),
        (known_of(ending=Ending(status=3)), "exit code 3"),
        (known_of(ending=Ending(status=1)), "exit code 1 (an uncaught exception or an error of its own)"),
        (known_of(ending=Ending(status=1), error=PythonError("KeyError")), "exit code 1"),
        (known_of(ending=Ending(status=127)), "exit code 127 (the command or a library that it needs was not found)"),
        (known_of(ending=Ending(status=0)), "exit code 0"),
        (known_of(life_lost=True), "an end whose status is not known yet"),
    ],
)
def test_an_end_in_words(known: Evidence, words: str) -> None:
    assert explain(known) == words


SEGV = FatalSignal(11, 0, "python", ("a.so+0x1",))


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        (Evidence(), 0, "exit code 0"),
        (Evidence(), 3, "exit code 3"),
        (
            known_of(error=PythonError("KeyError", "'a'", "a.py:3 in f")),
            1,
            "exit code 1 at a.py:3 in f (KeyError: 'a')",
        ),
        (known_of(error=PythonError("KeyError", "'a'", "a.py:3 in f", main=False)), 1, "exit code 1"),
        (known_of(error=PythonError("KeyError", "'a'", "a.py:3 in f")), 0, "exit code 0"),
        (Evidence(), -9, "signal 9 (SIGKILL)"),
        (Evidence(), -40, "signal 40"),
        (
            Evidence(cgroup=Cgroup(oom_kills=1)),
            -9,
            "signal 9 (SIGKILL): the kernel's OOM killer has struck once in its cgroup (oom_kill 1)",
        ),
        (Evidence(cgroup=Cgroup(oom_kills=1)), -15, "signal 15 (SIGTERM)"),
        (
            known_of(fatal=SEGV),
            -11,
            "signal 11 (SIGSEGV): an invalid memory access at address 0x0 in thread python; backtrace a.so+0x1",
        ),
        (known_of(fatal=SEGV), -6, "signal 6 (SIGABRT): abort() was called"),
        (
            known_of(terminated_by=Sender(812, 0, "torchrun")),
            -15,
            "signal 15 (SIGTERM), sent by torchrun, pid 812, uid 0",
        ),
        (
            known_of(process=Process(5), terminated_by=Sender(5, 0, "python")),
            -15,
            "signal 15 (SIGTERM), sent by itself",
        ),
        (
            known_of(process=Process(5), fatal=FatalSignal(6, None, "python", ("libc.so.6+0x2",), Sender(5, 0))),
            -6,
            "signal 6 (SIGABRT): abort() was called in thread python; backtrace libc.so.6+0x2",
        ),
    ],
)
def test_a_cause_begins_with_the_status_as_torchrun_has_it(known: Evidence, status: int, words: str) -> None:
    assert cause(but(known, ending=ending_of(status)), status) == words


@pytest.mark.parametrize(
    ("said", "status", "words", "error"),
    [
        ("", 1, "exit code 1 at a.py:3 in f (KeyError: 'a')", "a.py:3 in f: KeyError: 'a'"),
        ("KeyError: 'a'", 1, "exit code 1 at a.py:3 in f: KeyError: 'a'", "a.py:3 in f: KeyError: 'a'"),
        ("OSError: no", 1, "exit code 1 at a.py:3 in f (KeyError: 'a'): OSError: no", "a.py:3 in f: OSError: no"),
        ("KeyError: 'a'", -9, "signal 9 (SIGKILL): KeyError: 'a'", "KeyError: 'a'"),
        ("", -9, "signal 9 (SIGKILL)", ""),
        ("KeyError: 'a'", 0, "exit code 0", ""),
    ],
)
def test_a_cause_tells_once_what_the_process_has_said_itself(said: str, status: int, words: str, error: str) -> None:
    known = known_of(error=PythonError("KeyError", "'a'", "a.py:3 in f"), ending=ending_of(status))
    assert cause(known, status, said) == words
    assert error_of(known, status, said) == error


def test_a_signal_that_the_program_has_handled_did_not_end_it() -> None:
    handled = FatalSignal(11, handled=True)
    assert died_of(known_of(fatal=handled, life_lost=True)) is None
    assert died_of(known_of(fatal=replace(handled, handled=False), life_lost=True)) == 11
    assert died_of(known_of(fatal=replace(handled, handled=False))) is None, "it lives"


def test_a_counter_of_kills_says_nothing_of_a_process_that_lives_or_ended_otherwise() -> None:
    struck = Evidence(cgroup=Cgroup(oom_kills=1))
    assert condition_of_end(struck) is None
    crashed = condition_of_end(but(struck, ending=Ending(signum=11)))
    assert crashed is not None
    assert crashed.kind is Kind.CRASHED


def test_a_rank_that_taskd_has_killed_has_not_failed() -> None:
    assert condition_of_end(known_of(ending=Ending(signum=9, fenced=True))) is None


def test_signals_and_sizes_by_name() -> None:
    assert [signal_name(number) for number in (1, 6, 9, 11, 15, 31, 64)] == [
        "SIGHUP", "SIGABRT", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGSYS", "signal 64",
    ]  # fmt: skip
    assert {signal_name(number) for number in NATIVE_FAULTS} == {
        "SIGILL", "SIGTRAP", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS",
    }  # fmt: skip
    assert [size(count) for count in (0, 256, 4 << 20, 5 << 40)] == ["0 B", "256 B", "4 MiB", "5120 GiB"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_evidence_travels_unchanged_and_is_small(fault: Fault) -> None:
    known = fault.culprit(base(2, 4))
    packed = msgspec.msgpack.encode(known)
    assert msgspec.msgpack.decode(packed, type=Evidence) == known
    assert len(packed) < 4096


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_evidence_is_the_same_as_one_table_of_facts(fault: Fault) -> None:
    known = fault.culprit(base(2, 4))
    facts = flat(known)
    assert of_facts(facts) == known
    assert msgspec.convert(in_parts(msgspec.to_builtins(facts)), Evidence) == known


def test_a_fact_keeps_its_name_in_records() -> None:
    """Facts of evidence are keys of `faults/NNNN.json` and of `taskd job --json`, which older versions have written."""
    assert set(FACTS) == {
        "node", "process", "cgroup", "life_lost", "ending", "fatal", "terminated_by", "error", "clocks", "step",
        "step_s", "standing", "standing_s", "communicators", "collectives", "data_wait_s", "kernel_s", "full_disk",
        "lock_file", "non_finite", "pace", "stack", "threads", "native",
    }  # fmt: skip
    assert len(FACTS) == len(set(FACTS)), "no two parts have a fact of one name"
    assert of_facts({"step": 7, "of a newer taskd": 1}) == Evidence(position=RankPosition(7))


def test_evidence_cannot_be_changed_and_nothing_has_to_be_known() -> None:
    nothing = Evidence()
    assert not nothing.gone
    with pytest.raises(FrozenInstanceError):
        nothing.position.step = 1  # type: ignore[misc]
    assert all(fact in (None, (), "") for fact in flat(nothing).values())
    assert condition_of_end(nothing) is None
    assert condition_of_hang(nothing).kind is Kind.BEHIND


@pytest.mark.parametrize("row", [*FAILED, *STANDSTILL, *STUCK], ids=lambda row: row.kind.name.lower())
def test_each_row_has_a_fault_that_it_alone_explains(row: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the row, some fault would get a different kind, or none."""

    def told() -> list[Kind | None]:
        kinds: list[Kind | None] = []
        for fault in FAULTS.values():
            for change in (fault.culprit, fault.others):
                known = change(base(2, 4))
                end = condition_of_end(known)
                kinds.append(end.kind if end is not None else condition_of_hang(known).kind)
        return [*kinds, end_of(Ending(status=9)), end_of(None)]

    def end_of(ending: Ending | None) -> Kind | None:
        row = condition_of_end(known_of(ending=ending, life_lost=True))
        return row.kind if row is not None else None

    before = told()
    for name, table in (("FAILED", FAILED), ("STANDSTILL", STANDSTILL), ("STUCK", STUCK)):
        monkeypatch.setattr(
            f"taskd.core.diagnosis.conditions.{name}", tuple(other for other in table if other is not row)
        )
    with pytest.raises((AssertionError, StopIteration)):  # no row holds, or a different one
        assert told() == before


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        (Evidence(process=Process(1, RunState.UNINTERRUPTIBLE, state_s=0.2), clocks=Clocks(main_s=0.0)), Kind.LOOP),
        (Evidence(process=Process(1, RunState.UNINTERRUPTIBLE), clocks=Clocks(main_s=0.0)), Kind.UNINTERRUPTIBLE),
        (Evidence(process=Process(1, RunState.TRACED)), Kind.STOPPED),
        (known_of(full_disk="/ckpt", standing=Standing.CHECKPOINT), Kind.DISK_FULL),
        (known_of(full_disk="/ckpt", clocks=Clocks(main_s=0.0)), Kind.LOOP),
        (known_of(data_wait_s=0.3, clocks=Clocks(main_s=0.0)), Kind.LOOP),
    ],
)
def test_what_a_living_rank_does(known: Evidence, kind: Kind) -> None:
    assert condition_of_hang(known).kind is kind


@pytest.mark.parametrize(
    ("known", "mute"),
    [
        (Evidence(process=Process(1, RunState.STOPPED)), True),
        (Evidence(cgroup=Cgroup(frozen=True)), True),
        (Evidence(clocks=Clocks(gil_s=1.5, main_s=1.5)), True),
        (Evidence(clocks=Clocks(gil_s=0.0, main_s=1.5)), False),
        (Evidence(process=Process(1, RunState.UNINTERRUPTIBLE)), False),
        (Evidence(), False),
    ],
)
def test_who_cannot_answer(known: Evidence, mute: bool) -> None:
    assert cannot_answer(known) is mute


def test_operations_are_numbered_as_in_the_black_box() -> None:
    header = Path(__file__).parents[2] / "csrc" / "taskd.h"
    lines = (line.split() for line in header.read_text().splitlines() if line.startswith("#define TASKD_OP_"))
    numbers = {name.removeprefix("TASKD_OP_"): int(number) for _, name, number in lines}
    assert not numbers or numbers == {op.name: op.value for op in Operation if op is not Operation.OTHER}
