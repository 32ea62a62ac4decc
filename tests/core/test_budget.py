"""Restarts: the count, the window, and the end of faults that repeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.recovery.budget import Budget, Charge, Fault
from taskd.core.recovery.causes import Cause, CauseKind, of_report
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankStatus, Stage

NO_RANK, R0, R1, R2 = JobRank(-1), JobRank(0), JobRank(1), JobRank(2)


def of(detail: str) -> Cause:
    return Cause(CauseKind.EXITED, "exit code 1", 1, detail=detail)


def reported(status: int | None, cause: str, error: str = "") -> Cause:
    """Return the cause as an agent reports it."""
    stage = Stage.PAUSED if status is None else Stage.DEAD
    return of_report(
        RankStatus(rank=R1, incarnation=0, generation=0, stage=stage, cause=cause, status=status, error=error)
    )


def faults():
    """Yield faults that are all at different steps."""
    return ([Fault(0, step, of("no"))] for step in range(1_000_000))


# ---- the count


def test_one_recovery_costs_one_restart_however_many_ranks() -> None:
    budget = Budget(max_restarts=1)
    assert budget.charge([Fault(R0, 3, of("a")), Fault(R1, 3, of("b"))]).reason == "restart 1 of 1"
    refused = budget.charge([Fault(R2, 3, of("c"))])
    assert (refused.granted, refused.reason) == (False, "all 1 restarts of the job are spent (--max_restarts)")
    assert budget.spent == 1


def test_without_a_window_nothing_is_ever_refilled() -> None:
    budget, fault = Budget(max_restarts=2), faults()
    assert [budget.charge(next(fault), now_s=now_s).granted for now_s in (0.0, 1e6, 1e9)] == [True, True, False]


def test_a_new_manager_goes_on_with_the_count() -> None:
    budget = Budget(max_restarts=3, spent=2)
    assert budget.charge([Fault(R0, 1, of("x"))]).reason == "restart 3 of 3"
    assert not budget.charge([Fault(R0, 2, of("x"))]).granted


# ---- the window


def test_a_restart_counts_until_it_is_as_old_as_the_window() -> None:
    budget, fault = Budget(max_restarts=2, window_s=60.0), faults()
    assert budget.charge(next(fault), now_s=100.0) == Charge(True, "restart 1 of 2 in 60 s")
    assert budget.charge(next(fault), now_s=110.0).granted
    refused = budget.charge(next(fault), now_s=159.9)
    assert refused == Charge(False, "all 2 restarts of the last 60 s are spent (--max_restarts, TASKD_RESTART_WINDOW)")
    assert budget.charge(next(fault), now_s=160.0) == Charge(True, "restart 2 of 2 in 60 s")
    assert not budget.charge(next(fault), now_s=169.9).granted
    assert budget.charge(next(fault), now_s=170.0).granted


def test_what_a_new_manager_takes_over_counts_from_then() -> None:
    budget, fault = Budget(max_restarts=2, window_s=60.0, spent=2, since_s=500.0), faults()
    assert not budget.charge(next(fault), now_s=559.0).granted
    assert budget.charge(next(fault), now_s=560.0).reason == "restart 1 of 2 in 60 s"


def test_no_restart_at_all_stays_none_with_a_window() -> None:
    assert not Budget(max_restarts=0, window_s=1.0).charge([Fault(R0, 1, of("x"))], now_s=1e6).granted


@given(st.integers(0, 4), st.floats(0.5, 50), st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=40))
def test_no_window_holds_more_than_the_budget(limit: int, window_s: float, gaps_s: list[float]) -> None:
    budget, fault, now_s = Budget(limit, window_s=window_s), faults(), 0.0
    granted_s: list[float] = []
    for gap_s in gaps_s:
        now_s += gap_s
        within = [time_s for time_s in granted_s if now_s - time_s < window_s]
        granted = budget.charge(next(fault), now_s=now_s).granted
        assert granted is (len(within) < limit)
        granted_s += [now_s] * granted
        assert budget.spent <= limit


# ---- faults that repeat


def repeat(budget: Budget, times: int, *, every_s: float = 0.0) -> list[Charge]:
    """Charge the same fault again and again, with a restart of all whenever the budget requires one."""
    charges = []
    for time in range(times):
        charges.append(budget.charge([Fault(R1, 7, of("no"))], now_s=time * every_s))
        if charges[-1].anew:
            budget.restarted()
    return charges


def test_a_fault_that_repeats_has_all_start_anew_at_the_third_time() -> None:
    charges = repeat(Budget(), 3)
    assert [charge.anew for charge in charges] == [
        "",
        "",
        "rank 1 has failed 3 times at step 7 with the same cause (exit code 1), without progress",
    ]


def test_a_fault_that_repeats_after_all_have_started_anew_is_refused_at_the_third_time() -> None:
    budget = Budget()
    charges = repeat(budget, 6)
    assert [charge.granted for charge in charges] == [True] * 5 + [False]
    assert charges[-1].reason == (
        "rank 1 failed 6 times at step 7 with the same cause (exit code 1), 3 of them after all processes had started "
        "anew; a fault that repeats without progress is a bug in the job, not in a machine"
    )
    assert budget.spent == 5


def test_a_fault_that_strikes_again_after_all_have_started_anew_has_them_do_so_again() -> None:
    budget = Budget()
    budget.charge([Fault(R1, 7, of("no"))])
    budget.restarted()  # for a different reason
    assert budget.charge([Fault(R0, 7, of("no"))]).anew == ""
    assert budget.charge([Fault(R1, 7, of("no"))]).anew


def test_a_window_does_not_save_a_fault_that_repeats() -> None:
    assert [charge.granted for charge in repeat(Budget(window_s=1.0), 6, every_s=1e3)] == [True] * 5 + [False]


@pytest.mark.parametrize("other", [Fault(R0, 7, of("no")), Fault(R1, 8, of("no")), Fault(R1, 7, of("yes"))])
def test_another_rank_step_or_cause_is_another_fault(other: Fault) -> None:
    budget = Budget()
    assert not any(budget.charge([fault]).anew for fault in (Fault(R1, 7, of("no")), other) * 2)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ((None, "", "RuntimeError: by peer [::1]:41234"), (None, "", "RuntimeError: by peer [::1]:5999"), True),
        ((1, "", "ValueError: bad object at 0x7f00ab"), (1, "", "ValueError: bad object at 0x55aa01ff"), True),
        ((1, "", "IndexError: index 7 is out of bounds"), (1, "", "IndexError: index 8 is out of bounds"), True),
        ((1, "", "a.py:3 in f: KeyError: 'a'"), (1, "", "a.py:4 in f: KeyError: 'a'"), False),
        ((1, "exit code 1"), (2, "exit code 2"), False),
        ((-9, "signal 9 (SIGKILL)"), (-11, "signal 11 (SIGSEGV)"), False),
        ((-15, "signal 15 (SIGTERM), sent by pid 7"), (-15, "signal 15 (SIGTERM), sent by pid 8"), True),
        ((-9, "signal 9 (SIGKILL)"), (-9, "another wording"), True),
        ((1, "exit code 1"), (None, "exit code 1"), False),
    ],
)
def test_which_causes_are_the_same(first: tuple[int, str, str], second: tuple[int, str, str], same: bool) -> None:
    """Neither numbers in an error nor the wording of its description count."""
    budget = Budget()
    assert not any(budget.charge([Fault(R1, 7, reported(*cause))]).anew for cause in (first, second))
    assert bool(budget.charge([Fault(R1, 7, reported(*first))]).anew) is same


def test_a_later_step_of_all_forgets_the_faults_before_it() -> None:
    budget = Budget()
    for _ in range(2):
        budget.charge([Fault(R1, 7, of("x"))])
    budget.progressed(7)
    assert budget.charge([Fault(R1, 7, of("x"))]).anew
    budget.progressed(8)
    assert not budget.charge([Fault(R1, 7, of("x"))]).anew


def test_without_a_known_step_nothing_counts_as_a_repetition() -> None:
    budget = Budget()
    charges = [budget.charge([Fault(R0, -1, of("no"))]) for _ in range(9)]
    assert all(charge.granted and not charge.anew for charge in charges)


def test_an_early_end_that_repeats_is_a_bug_whoever_it_was() -> None:
    budget, early = Budget(), Fault(NO_RANK, -1, of("no"), early=True)
    assert [budget.charge([early] * 8).granted for _ in range(3)] == [True, True, False]
    assert "before any step was committed" in budget.charge([early]).reason


# ---- the script's own errors


def raised(rank: JobRank, error: str = "a.py:3 in train: ValueError: bad batch") -> Fault:
    return Fault(rank, 7, reported(1, f"exit code 1 at {error}", error), raised=True)


def test_an_error_of_the_script_that_fresh_processes_repeat_ends_the_job() -> None:
    budget = Budget()
    assert budget.charge([raised(R1)]).granted
    budget.restarted()
    refused = budget.charge([raised(R0)])  # whichever rank reports first
    assert not refused.granted
    assert refused.reason.startswith("rank 0 failed at step 7 as a rank did before all processes started anew")
    assert "a.py:3 in train: ValueError: bad batch" in refused.reason
    assert budget.spent == 1


def test_an_error_that_comes_again_from_copies_has_all_start_anew() -> None:
    """New processes of all ranks resumed with the state of the former ones. The next processes start without it."""
    budget = Budget()
    assert not budget.charge([raised(R1)]).anew
    budget.renewed()
    assert budget.charge([raised(R0)]).anew
    budget.restarted()
    assert not budget.charge([raised(R1)]).granted


def test_progress_forgets_what_came_before_copies() -> None:
    budget = Budget()
    budget.charge([raised(R1)])
    budget.renewed()
    budget.progressed(8)
    assert not budget.charge([raised(R0)]).anew


def test_an_error_of_the_script_has_all_start_anew_at_the_third_time() -> None:
    budget = Budget()
    assert [bool(budget.charge([raised(R1)]).anew) for _ in range(3)] == [False, False, True]


def test_an_error_at_another_line_or_after_progress_is_another_fault() -> None:
    budget = Budget()
    budget.charge([raised(R1)])
    budget.restarted()
    assert budget.charge([raised(R1, "a.py:4 in train: ValueError: bad batch")]).granted
    budget.progressed(8)
    assert budget.charge([raised(R1)]).granted


@pytest.mark.parametrize(
    ("error", "kind", "own"),
    [
        ("a.py:3 in train: ValueError: bad batch", "", True),
        ("a.py:3 in train: ValueError: bad batch", "retry", False),
        ("a.py:3 in train: ConnectionError: Connection refused by store", "", False),
        ("a.py:3 in train: RuntimeError: CUDA out of memory", "", False),
        ("", "", False),
    ],
)
def test_which_errors_are_the_scripts_own(error: str, kind: str, own: bool) -> None:
    for stage, status in ((Stage.DEAD, 1), (Stage.PAUSED, None)):
        report = RankStatus(
            rank=R1, incarnation=0, generation=0, stage=stage, cause=error, status=status, error=error,
            raised=status is not None, kind=kind,
        )  # fmt: skip
        assert of_report(report).own is own


def test_small_numbers_tell_the_ranks_of_one_start_apart() -> None:
    """Errors of one start that differ in a small number are no common typo. Those of different starts count as one."""
    budget = Budget()

    def missing(*indexes: int) -> list[Fault]:
        causes = [reported(1, "exit code 1", f"KeyError: 'GPU {index}'") for index in indexes]
        return [Fault(NO_RANK, -1, cause, early=True, raised=True) for cause in causes]

    assert budget.charge(missing(0, 1, 2)).granted
    assert budget.charge(missing(1)).granted
    assert not budget.charge(missing(2)).granted


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("TransitionError: ENTER, generation 9", "TransitionError: ENTER, generation 11"),
        ("ValueError: at 2026-11-27 21:16:50.123", "ValueError: at 2026-11-28 01:02:03.4"),
        ("ValueError: loss nan", "ValueError: loss 1.5e-07"),
        ("ValueError: request req_9fKq01 failed", "ValueError: request req_Zz77x failed"),
        ("E: 1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed is busy", "E: 9f8e7d6c-0a0b-4c4d-8e8f-aabbccddeeff is busy"),
        ("OSError: no '/tmp/tmpabc_defg/x.pt'", "OSError: no '/tmp/tmpqrs_tuvw/x.pt'"),
        ("OSError: no /data/tmpabcdefgh", "OSError: no /data/tmpijklmnop"),
        ("/tmp/tmpabc_defg/a.py:3 in f: E: no", "/tmp/tmpqrs_tuvw/a.py:3 in f: E: no"),
        ("ValueError: shape [1, 2, 3]", "ValueError: shape [4, 5]"),
    ],
)
def test_what_differs_each_time_does_not_count(first: str, second: str) -> None:
    assert reported(1, "", first) == reported(1, "", second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/a/b1.py:3 in f: E: no", "/a/b2.py:3 in f: E: no"),
        ("a.py:3 in f: E: no", "a.py:13 in f: E: no"),
        ("ValueError: bad", "TypeError: bad"),
        ("OSError: no /data/one", "OSError: no /data/two"),
    ],
)
def test_places_classes_and_names_count(first: str, second: str) -> None:
    assert reported(1, "", first) != reported(1, "", second)
