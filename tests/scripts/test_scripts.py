"""Some of the scripts with kills, as `scripts/scripts.sh` plays all of them, and the judgement of a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.catalog import FAILED, IDENTICAL, PROGRAMS, REFUSED, RESTARTED, SCRIPTS, SILENT, chosen
from tests.scripts.grades import Grade
from tests.scripts.judge import Judgement, by_self_check, judge, judge_calm, may_restart
from tests.scripts.kills import Kill, NoPlaceError, Place, draw
from tests.scripts.play import Run
from tests.scripts.stage import Outcome, Stage
from tests.scripts.unseen_list import UNSEEN, UNSEEN_PROGRAMS
from tests.scripts.verdict import Verdict, verdict_of
from tests.thorough import everyday

MOMENTS = {rank: ["setup", "setup done", *["step", "committed"] * 20, "after"] for rank in range(2)}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", everyday(["step_batches", "no_sdk_snapshot", "pipeline"], "step_batches"))
def test_a_script_with_two_kills(name: str, run_dir: Path) -> None:
    (script,) = chosen(name)[:1]
    outcome = Stage(run_dir, brief=True).play(script, "0", 2)
    assert outcome.judgement.grade in script.allowed, outcome.judgement.why
    assert len(outcome.killed) == 2


def test_each_program_is_in_the_list_once() -> None:
    programs = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    assert programs == sorted({script.path.stem for script in SCRIPTS})
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)


def test_each_unseen_program_is_in_their_list_once() -> None:
    assert sorted(path.stem for path in UNSEEN_PROGRAMS.glob("*.py")) == sorted(script.name for script in UNSEEN)


def test_kills_are_the_same_for_a_seed_and_after_the_setup() -> None:
    kills = [draw(MOMENTS, 2, str(seed)) for seed in range(50)]
    assert kills == [draw(MOMENTS, 2, str(seed)) for seed in range(50)]
    assert all(first.number > 2 for first, *_ in kills)
    assert len({(kill.rank, kill.delay_us == 0) for pair in kills for kill in pair}) == 4


def test_kills_strike_at_the_places_that_a_script_names() -> None:
    places = (Place("committed", 3, rank=1), Place("step"))
    pairs = [draw(MOMENTS, 2, str(seed), places) for seed in range(50)]
    assert pairs == [draw(MOMENTS, 2, str(seed), places) for seed in range(50)]
    assert {first for first, _ in pairs} == {Kill(1, 3, 0, "committed")}
    assert {second.moment for _, second in pairs} == {"step"}
    assert {second.rank for _, second in pairs} == {0, 1}
    with pytest.raises(NoPlaceError):
        draw(MOMENTS, 2, "0", (Place("committed", 21),))


def test_a_kill_of_a_name_counts_the_moments_of_that_name() -> None:
    assert Kill(0, 2, 0, "committed").reached(MOMENTS[0]) == "committed"
    assert Kill(0, 2, 0).reached(MOMENTS[0]) == "setup done"
    assert not Kill(0, 21, 0, "committed").reached(MOMENTS[0])


@pytest.mark.parametrize("own", [True, False])
def test_the_process_that_reaches_a_named_moment_is_killed_or_its_victim(own: bool, tmp_path: Path) -> None:
    victim = "0" if own else "child.pid"
    code = f"""
import subprocess
from tests.scripts import diary
child = subprocess.Popen(["sleep", "60"] if {not own} else ["true"])
try:
    for name in ("a", "b", "a", "b", "b"):
        diary.moment(name, victim={victim})
        print(name, flush=True)
    print(child.wait(10))
finally:
    child.kill()
"""
    env = {**os.environ, "SCRIPT_FOLDER": str(tmp_path), "SCRIPT_KILLS": "1:1:0,0:2:0:b", "RANK": "0"}
    (tmp_path / "output-0.txt").touch()
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == (-signal.SIGKILL if own else 0), ended.stderr
    assert ended.stdout.split() == (["a", "b", "a"] if own else ["a", "b", "a", "b", "b", str(-signal.SIGKILL)])


def test_each_shape_of_the_issue_has_a_script() -> None:
    """Shape 32 is a second fit of Lightning's."""
    assert {script.shape for script in SCRIPTS} >= {*range(1, 34)} - {32}
    assert len(SCRIPTS) >= 85


def test_a_refusal_before_the_first_kill_is_a_verdict(tmp_path: Path) -> None:
    said = b"train.py:3 is not given: at a fault all processes start anew"
    run = ran(folder=tmp_path)
    (tmp_path / "output-0.txt").write_bytes(b"step 1\n" + said)
    (tmp_path / "said-0-9").write_text("7")
    assert verdict_of(run) is Verdict.NONE
    (tmp_path / "said-0-9").write_text(str(7 + len(said)))
    assert verdict_of(run) is Verdict.INEXACT


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("self-check: exact: proven at step 3", Verdict.PROVEN),
        ("self-check: unproven: rank 0: the training ended first", Verdict.UNPROVEN),
        ("self-check: not exact: train.py:3: rank 0: done again, it differs in the buffer b", Verdict.INEXACT),
        ("self-check: exact: proven at step 3\nx.py:3: at a fault in it all processes start anew", Verdict.INEXACT),
    ],
)
def test_the_self_checks_verdict(said: str, verdict: Verdict, tmp_path: Path) -> None:
    (tmp_path / "output-0.txt").write_text(said)
    assert verdict_of(ran(folder=tmp_path, killed=[])) is verdict


def test_a_start_anew_that_the_self_check_asks_for_is_no_fault() -> None:
    asked = {
        "restart": True,
        "causes": {},
        "reason": "rank 0: the self-check has changed the training, which is not exact",
    }
    assert by_self_check(asked)
    assert not by_self_check({**asked, "restart": False})
    assert not by_self_check({**asked, "causes": {"1": "signal 9"}})
    assert not by_self_check({**asked, "reason": "not retry: rank 0 has no process"})


def test_a_verdict_agrees_with_what_the_kills_have_shown() -> None:
    def disagrees(verdict: Verdict, grade: Grade) -> bool:
        return Outcome(SCRIPTS[0], Judgement(grade, ""), [], 0.0, False, Path(), verdict).disagrees

    assert [grade for grade in Grade if disagrees(Verdict.INEXACT, grade)] == [IDENTICAL]
    assert [grade for grade in Grade if disagrees(Verdict.PROVEN, grade)] == [SILENT, FAILED]
    assert not any(disagrees(Verdict.UNPROVEN, grade) or disagrees(Verdict.NONE, grade) for grade in Grade)


def ran(**changes: object) -> Run:
    run = Run(Path("/nonexistent"), status=0, results={0: {"step": 1}}, saw={0: {"0": [1]}}, killed=[(0, "step")])
    run.events = [{"event": "recovered", "restart": False, "replaced": {"0": 7}}]
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def test_grades() -> None:
    script, reference = SCRIPTS[0], ran(events=[], killed=[])
    restart = [{"event": "recovered", "restart": True, "replaced": {"0": 7, "1": 8}, "reason": "why"}]
    assert judge(script, ran(), reference).grade is IDENTICAL
    assert judge(script, ran(events=restart), reference).grade is RESTARTED
    assert judge(script, ran(saw={0: {"0": [2]}}), reference).grade is SILENT
    assert judge(script, ran(results={}), reference).grade is SILENT
    assert judge(script, ran(status=1), reference).grade is FAILED
    assert judge(script, ran(status=None), reference).grade is FAILED
    assert judge(script, ran(orphans=["7"]), reference).grade is FAILED
    healthy = judge(script, ran(killed=[(1, "step")]), reference)
    assert (healthy.grade, healthy.healthy_replaced) == (FAILED, 1)
    renewed = [{"event": "recovered", "restart": False, "replaced": {"0": 7, "1": 8}, "kept": {}}]
    assert judge(script, ran(events=renewed), reference).grade is IDENTICAL


@pytest.mark.parametrize(
    ("said", "grade"),
    [("taskd keeps it with the state from now on.", SILENT), ("the TrainState does not have it.", REFUSED)],
)
def test_what_was_taken_into_the_state_explains_no_other_result(said: str, grade: Grade, tmp_path: Path) -> None:
    script, reference = SCRIPTS[0], ran(events=[], killed=[])
    line = f"seen (at {script.path}:30) is changed by the training: {said}"
    (tmp_path / "output-0.txt").write_text(line)
    (tmp_path / "said-0-9").write_text(str(len(line)))
    assert judge(script, ran(folder=tmp_path, saw={0: {"0": [2]}}), reference).grade is grade


def test_what_is_told_as_left_out_explains_only_what_is_missing(tmp_path: Path) -> None:
    script, reference = SCRIPTS[0], ran(events=[], killed=[], saw={0: {"0": [1], "accuracy 9": [7]}})
    assert judge(script, ran(folder=tmp_path), reference).grade is SILENT
    said = f"{script.path}:30 stands between optimizer.step() and the commit, and is left out of step 9"
    (tmp_path / "output-0.txt").write_text(said)
    assert judge(script, ran(folder=tmp_path), reference).grade is REFUSED
    assert judge(script, ran(folder=tmp_path, saw={0: {"0": [2]}}), reference).grade is SILENT


def test_all_may_start_anew_after_training_and_where_both_died_at_once() -> None:
    orders = [{"event": "directive", "order": "release"}, {"event": "recovered", "restart": True}]
    assert may_restart(ran(events=orders))
    assert not may_restart(ran(events=orders[::-1]))
    assert may_restart(ran(killed=[(0, "step"), (1, "step + 9 us")]))
    early = [{"event": "recovered", "restart": True}, {"event": "first step"}]
    assert may_restart(ran(events=early))
    assert not may_restart(ran(events=early[::-1]))
    assert not may_restart(ran(killed=[(0, "step + 7 us")]))
    stuck = [{"event": "recovered", "restart": True, "reason": "rank 0 has failed 3 times at step 9, without progress"}]
    assert may_restart(ran(events=stuck, killed=[(0, "step"), (0, "setup"), (0, "setup done")]))
    assert not may_restart(ran(events=stuck, killed=[(0, "step"), (0, "setup")]))


def test_a_run_without_kills_has_no_recoveries() -> None:
    reference = ran(events=[], killed=[])
    assert judge_calm(reference, reference) is None
    judgement = judge_calm(ran(killed=[]), reference)
    assert judgement is not None
    assert judgement.healthy_replaced == 1
