"""Decisions of a rehearsal: who dies when, the differences, and the line that is named for each."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from taskd.core.rehearsal import compare, kills
from taskd.core.rehearsal.compare import Noise, StepStage
from taskd.core.rehearsal.kills import Kill, Moment, Seen
from taskd.core.rehearsal.records import RankRecord, read
from taskd.core.rehearsal.verdict import Outcome, Rehearsed, judge, of_noise, of_undisturbed, suspects

STEPS = 8


def notes(rank: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Return the notes of an undisturbed rank. `changes`: by KIND_STEP, as `commit_3={"loss": "9"}`."""
    written: list[dict[str, Any]] = [{"k": "made", "line": "/w/train.py:5"}, {"k": "begin", "step": 0, "inside": True}]
    for step in range(1, STEPS + 1):
        numbers = {"torch": f"t{step}", "python": f"p{step}"}
        parts = {"model": f"m{step - 1}"}
        forward = {"k": "forward", "step": step, "batch": f"b{rank}{step}", "numbers": numbers, "parts": parts}
        variables = [["counter.seen", f"c{step}", False, False]]
        commit = {"k": "commit", "step": step, "parts": {"model": f"m{step}"}, "loss": "0.5", "variables": variables}
        written += [{**forward, **changes.get(f"forward_{step}", {})}, {**commit, **changes.get(f"commit_{step}", {})}]
        written.append({"k": "printed", "step": step, "text": f"step {step}", "line": "/w/train.py:30"})
    return written


def record(written: list[dict[str, Any]]) -> RankRecord:
    return read(map(json.dumps, written))


def ran(*ranks: list[dict[str, Any]]) -> dict[int, RankRecord]:
    return {rank: record(written) for rank, written in enumerate(ranks)}


UNDISTURBED = ran(notes(0), notes(1))
KILL = Kill(0, 1, 4, Moment.BACKWARD)
KILLED = {"k": "killed", "number": 0, "step": 3}


def rehearsed(first: list[dict[str, Any]], second: list[dict[str, Any]], **changes: Any) -> Rehearsed:
    killed = ran(first, [*second, KILLED])
    recovered = [{"event": "recovered", "restart": False, "replaced": {"1": 7}}]
    given = {
        "undisturbed": UNDISTURBED,
        "again": UNDISTURBED,
        "killed": killed,
        "kills": [KILL],
        "recoveries": recovered,
    }
    return Rehearsed(**{**given, **changes})


def test_every_rank_dies_and_every_moment_is_struck() -> None:
    seen = {
        rank: Seen(40, evaluations=(10, 20), saves=(22,) if rank == 0 else (), ends=(10, 20, 30), works=(6, 35))
        for rank in range(2)
    }
    planned = kills.plan(seen)
    assert {kill.rank for kill in planned} == {0, 1}
    assert {kill.moment for kill in planned} == set(Moment) - {Moment.ACCUMULATING, Moment.BEHIND}
    assert next(kill.rank for kill in planned if kill.moment is Moment.SAVING) == 0
    assert next(kill.step for kill in planned if kill.moment is Moment.EPOCH_END) in (20, 30)
    assert next(kill.step for kill in planned if kill.moment is Moment.AFTER_COMMIT) in (6, 35)
    assert [kill.step for kill in planned] == sorted(kill.step for kill in planned)
    steps = [kill.step for kill in planned]
    assert all(later - earlier >= kills.LEAST_GAP for earlier, later in pairwise(steps))
    assert planned == kills.plan(seen)
    assert kills.plan(seen, ends=True) == [*planned, Kill(len(planned), 1, 40, Moment.BEHIND)]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_with_many_ranks_each_dies_once(ranks: int) -> None:
    planned = kills.plan({rank: Seen(40) for rank in range(ranks)})
    assert {kill.rank for kill in planned} == set(range(ranks))
    assert all(kills.FIRST <= kill.step < 40 for kill in planned)


def test_too_few_steps_have_no_kills() -> None:
    assert kills.plan({0: Seen(4)}) == []
    assert kills.plan({}) == []
    assert kills.plan({0: Seen(4)}, ends=True) == []


def test_a_step_that_is_done_again_counts_as_it_was_last() -> None:
    again = [*notes()[:8], {"k": "on", "step": 2, "new": False}]
    again.append({"k": "forward", "step": 3, "batch": "other", "numbers": {}, "parts": {}})
    found = record(again)
    assert found.steps[3].batches == ["other"]
    assert found.resumed == [(2, False)]
    assert read(["{", '"text"', '{"k": "begin", "st']).resumed == []


def test_errors_before_a_start_from_the_end_are_forgotten() -> None:
    died = {"k": "died", "step": 8, "text": "RuntimeError: closed", "line": "train.py:9", "taskd": "False"}
    assert record([*notes(), died]).facts.died
    assert not record([*notes(), died, {"k": "anew", "step": 0}]).facts.died


def test_moments_that_not_every_step_has_are_read() -> None:
    kinds = ("evaluation", "save", "end", "work")
    rare = record([*notes(), *({"k": kind, "step": step} for step, kind in enumerate(kinds, 2))]).rare
    assert (rare.evaluations, rare.saves, rare.ends, rare.works) == ([2], [3], [4], [5])


def test_two_runs_that_are_alike_have_no_difference() -> None:
    assert compare.first_difference(UNDISTURBED, UNDISTURBED, Noise()) is None
    assert judge(rehearsed(notes(0), notes(1))).outcome is Outcome.EXACT


@pytest.mark.parametrize(
    ("changes", "stage", "what"),
    [
        ({"forward_5": {"parts": {"model": "x"}}}, StepStage.STATE, ("model",)),
        ({"forward_5": {"numbers": {"torch": "x", "python": "p5"}}}, StepStage.NUMBERS, ("torch",)),
        ({"forward_5": {"batch": "x"}}, StepStage.BATCHES, ()),
        ({"commit_5": {"parts": {"model": "x"}}}, StepStage.WORK, ("model",)),
        ({"commit_5": {"loss": "0.6"}}, StepStage.LOSS, ()),
    ],
)
def test_what_differs_first_is_named(changes: dict[str, Any], stage: StepStage, what: tuple[str, ...]) -> None:
    later = {"commit_6": {"loss": "0.7"}}
    found = compare.first_difference(UNDISTURBED, ran(notes(0), notes(1, **changes, **later)), Noise())
    assert found is not None
    assert (found.step, found.stage, found.rank, found.what) == (5, stage, 1, what)


def test_numbers_that_no_two_runs_share_are_passed_over_and_batches_are_not() -> None:
    other = ran(notes(0, forward_2={"numbers": {"torch": "t2", "python": "x"}}), notes(1))
    masked = compare.noise(UNDISTURBED, other)
    assert masked.numbers == {"python"}
    assert of_noise(UNDISTURBED, other) is None
    verdict = of_noise(UNDISTURBED, ran(notes(0, forward_2={"batch": "x"}), notes(1)))
    assert verdict is not None
    assert verdict.outcome is Outcome.UNKNOWN


def test_what_taskd_has_told_of_the_loader_is_the_reason() -> None:
    told = {"k": "told", "text": "the DataLoader iterated at /w/train.py:9 is not a part of the TrainState: after …"}
    verdict = judge(rehearsed([*notes(0, forward_4={"batch": "x"}), told], notes(1)))
    assert (verdict.outcome, verdict.findings[0].line) == (Outcome.INEXACT, "/w/train.py:9")
    assert verdict.first.startswith("step 4, rank 0: the data; killed before: rank 1 in the backward pass")


def test_a_variable_that_is_otherwise_is_named_with_the_line_that_changes_it() -> None:
    changes = {f"commit_{step}": {"variables": [["counter.seen", "x", False, False]]} for step in range(4, STEPS + 1)}
    runs = rehearsed(notes(0), notes(1, **changes, forward_5={"batch": "x"}))
    assert suspects(runs) == ["variable:counter.seen"]
    line = {"k": "line", "name": "variable:counter.seen", "line": "/w/train.py:21", "behind": False}
    traced = ran([*notes(0), line, line], notes(1))
    verdict = judge(rehearsed(notes(0), notes(1, **changes, forward_5={"batch": "x"}), traced=traced))
    assert verdict.findings[0].line == "/w/train.py:21"
    assert "'counter.seen' is changed here" in verdict.findings[0].found
    assert 'replicated={"counter": counter}' in verdict.findings[0].mend
    alone = judge(rehearsed(notes(0), notes(1, **changes), traced=traced))
    assert alone.headline.startswith("weights and data are exact, what it keeps beside its state")


def test_what_a_function_goes_on_with_is_a_note_as_long_as_nothing_depends_on_it() -> None:
    own = {f"commit_{step}": {"variables": [["total", f"v{step}", False, True]]} for step in range(1, STEPS + 1)}
    anew = {**own, "commit_8": {"variables": [["total", "x", False, True]]}}
    first = ran(notes(0, **own), notes(1, **own))
    verdict = judge(rehearsed(notes(0, **own), notes(1, **anew), undisturbed=first, again=first))
    assert verdict.outcome is Outcome.EXACT
    assert any("'total'" in note for note in verdict.notes)


def test_a_part_that_moves_behind_the_commit_is_the_reason_where_it_differs() -> None:
    moving = {f"forward_{step}": {"parts": {"model": f"n{step}"}} for step in range(2, STEPS + 1)}
    first = ran(notes(0, **moving), notes(1, **moving))
    assert compare.moved_behind(first) == ["model"]
    left_out = {**moving, "forward_5": {"parts": {"model": "m4"}}}
    line = {"k": "line", "name": "part:model", "line": "/w/train.py:40", "behind": True}
    given = {"undisturbed": first, "again": first, "traced": ran([*notes(0), line], notes(1))}
    runs = rehearsed(notes(0, **left_out), notes(1, **left_out), **given)
    assert suspects(runs) == ["part:model"]
    verdict = judge(runs)
    assert verdict.findings[0].line == "/w/train.py:40"
    assert "between a commit and the next step" in verdict.findings[0].found


def test_a_line_that_is_missing_counts_and_one_that_comes_twice_does_not() -> None:
    twice = [*notes(0), {"k": "printed", "step": 4, "text": "step 4", "line": "/w/train.py:30"}]
    verdict = judge(rehearsed(twice, notes(1)))
    assert verdict.outcome is Outcome.EXACT
    assert verdict.notes[0] == "printed once more, by steps or work that were done again: 1 line"
    missing = [note for note in notes(0) if note.get("text") != "step 4"]
    verdict = judge(rehearsed(missing, notes(1)))
    assert (verdict.outcome, verdict.findings[0].line) == (Outcome.INEXACT, "/w/train.py:30")
    assert "'step 4' is missing" in verdict.findings[0].found


def test_lines_with_a_clock_in_them_are_compared_without_it() -> None:
    def timed(seconds: str) -> list[dict[str, Any]]:
        return [*notes(0), {"k": "printed", "step": 4, "text": f"took {seconds} s", "line": "/w/train.py:31"}]

    first, second = ran(timed("1.5"), notes(1)), ran(timed("1.7"), notes(1))
    masked = compare.noise(first, second)
    assert compare.line_differences(first, ran(timed("2.9"), notes(1)), masked) == []
    assert len(compare.line_differences(first, ran(notes(0), notes(1)), masked)) == 1


def test_what_the_self_check_has_found_comes_before_names_that_begin_anew() -> None:
    told = {"k": "told", "text": "/w/train.py:9 counts the batches of 'loader' with 'i': not exact after a recovery. X"}
    behind = notes(1, forward_5={"batch": "other"}, commit_5={"variables": [["loss", "9", False, True]]})
    verdict = judge(rehearsed([*notes(0), told], behind))
    assert [one.line for one in verdict.findings] == ["/w/train.py:9"]
    exact = judge(rehearsed([*notes(0), told], notes(1)))
    assert exact.outcome is Outcome.EXACT
    assert any("counts the batches" in note for note in exact.notes)


def test_loaders_that_were_shortened_are_noted() -> None:
    short = {"k": "shortened", "text": "'loader' was shortened from 90 batches to 18, so that epochs end here"}
    undisturbed = ran([short, *notes(0)], notes(1))
    verdict = judge(rehearsed(notes(0), notes(1), undisturbed=undisturbed, again=undisturbed))
    assert any("shortened from 90 batches to 18" in note for note in verdict.notes)


def test_where_all_start_anew_the_refusal_is_the_reason() -> None:
    told = {
        "k": "told",
        "text": "the TrainState made at /w/train.py:5 was not given the StepLR of its training: at a fault all "
        "processes start anew. Pass it",
    }
    anew = [{"event": "recovered", "restart": True, "reason": "refused"}]
    verdict = judge(rehearsed([*notes(0), told], notes(1), recoveries=anew))
    assert (verdict.outcome, verdict.findings[0].line) == (Outcome.INEXACT, "/w/train.py:5")
    verdict = judge(rehearsed(notes(0), notes(1), recoveries=anew))
    assert verdict.findings[0].found == "all processes started anew: refused"


def test_all_may_start_anew_for_a_death_behind_the_training_function() -> None:
    behind = Kill(1, 1, 8, Moment.BEHIND)
    died = {"k": "killed", "number": 1, "step": 8}
    recoveries = [
        {"event": "recovered", "restart": False, "replaced": {"1": 7}},
        {"event": "recovered", "restart": True, "replaced": {"0": 8, "1": 9}, "step": 8},
        {"event": "recovered", "restart": True, "replaced": {"0": 10, "1": 11}, "step": 3},
    ]
    given = rehearsed(notes(0), [*notes(1), died], kills=[KILL, behind], recoveries=recoveries)
    verdict = judge(given)
    assert verdict.outcome is Outcome.EXACT
    assert any("all processes start anew; they ended well" in note for note in verdict.notes)
    assert judge(replace(given, recoveries=recoveries[::-1])).outcome is Outcome.INEXACT
    renewed = [recoveries[0], {**recoveries[1], "restart": False, "kept": {}}]
    verdict = judge(replace(given, recoveries=renewed))
    assert verdict.outcome is Outcome.EXACT
    assert any("all ranks go back to copies; they ended well" in note for note in verdict.notes)
    verdict = judge(replace(given, recoveries=renewed, error="it ends with status 1"))
    assert any(note.endswith("all ranks go back to copies") for note in verdict.notes)
    early = [recoveries[0], recoveries[1] | {"step": 6}]
    assert judge(replace(given, recoveries=early)).outcome is Outcome.INEXACT
    assert judge(replace(given, kills=[KILL])).outcome is Outcome.INEXACT


def test_a_run_with_kills_that_ends_early_or_replaces_others_is_not_exact() -> None:
    verdict = judge(rehearsed(notes(0)[:-6], notes(1)[:-6]))
    assert "it ends after step 6, undisturbed it comes to step 8" in verdict.findings[0].found
    others = [{"event": "recovered", "restart": False, "replaced": {"0": 6, "1": 7}}]
    assert "2 processes were replaced" in judge(rehearsed(notes(0), notes(1), recoveries=others)).findings[0].found


def test_what_differs_before_any_kill_is_taskds() -> None:
    verdict = judge(rehearsed(notes(0, forward_2={"batch": "x"}), notes(1)))
    assert verdict.headline == "it is not what it is without taskd"


def test_a_run_without_a_state_or_without_steps_is_told_what_is_missing() -> None:
    kinds = {"model": "wrapper", "network": "model", "optimizer": "optimizer"}
    lines = {"line": "/w/train.py:9", "function": "train", "begins": "/w/train.py:4"}
    verdict = of_undisturbed(ran([{"k": "missing", "kinds": kinds, **lines}]), "")
    assert verdict is not None
    assert "TrainState(model=model, optimizer=optimizer)" in verdict.findings[0].found
    assert [finding.line for finding in verdict.findings] == ["/w/train.py:4", "/w/train.py:4", "/w/train.py:9"]
    made = {"k": "made", "line": "/w/train.py:5"}
    outside = of_undisturbed(ran([made, {"k": "begin", "inside": False}]), "")
    assert outside is not None
    assert outside.headline == "its training is in no resilient function"
    idle = of_undisturbed(ran([made, {"k": "begin", "inside": True}]), "")
    assert idle is not None
    assert idle.headline == "it commits no step"
    refused = {"k": "died", "text": "ConfigError: …", "line": "/w/train.py:7", "taskd": "True"}
    assert of_undisturbed(ran([made, refused]), "it ends with status 1").outcome is Outcome.INEXACT  # type: ignore[union-attr]
    failed = of_undisturbed(ran([made, {**refused, "taskd": "False"}]), "it ends with status 1")
    assert failed is not None
    assert failed.outcome is Outcome.UNKNOWN
    assert of_undisturbed(UNDISTURBED, "") is None


def test_a_script_with_a_trainers_door_is_known_as_adapted() -> None:
    missing = {"k": "missing", "step": 0, "door": "taskd.hf", "kinds": {"model": "model"}, "line": "/w/train.py:9"}
    verdict = of_undisturbed(ran([missing], [missing]), "")
    assert verdict is not None
    assert (verdict.outcome, verdict.headline) == (Outcome.UNKNOWN, "it trains with taskd.hf")


def test_what_stands_behind_the_commit_explains_only_a_state_that_is_otherwise() -> None:
    text = "/w/train.py:40 was interrupted between the commit of step 3 and the next step's forward pass. What stands …"
    told = {"k": "told", "text": text}
    verdict = judge(rehearsed([*notes(0, forward_4={"batch": "x"}), told], notes(1)))
    assert verdict.findings[0].line == ""
    assert text in verdict.notes
    verdict = judge(rehearsed([*notes(0, forward_4={"parts": {"model": "x"}}), told], notes(1)))
    assert verdict.findings[0].line == "/w/train.py:40"


def test_what_taskd_has_told_of_a_variable_needs_no_run_of_its_own() -> None:
    changes = {f"commit_{step}": {"variables": [["dice", "x", True, False]]} for step in range(4, STEPS + 1)}
    own = {f"commit_{step}": {"variables": [["dice", f"d{step}", True, False]]} for step in range(1, STEPS + 1)}
    first = ran(notes(0, **own), notes(1, **own))
    text = (
        "the training function goes on with 'dice' (/w/train.py:35), an iterator or a random generator of the script's"
    )
    runs = rehearsed(
        [*notes(0, **own), {"k": "told", "text": text}], notes(1, **changes), undisturbed=first, again=first
    )
    assert suspects(runs) == []
    assert [finding.line for finding in judge(runs).findings] == ["/w/train.py:35"]
