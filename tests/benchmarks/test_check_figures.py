"""`scripts/figures.sh`: each verdict, and the exit status that follows from it."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from benchmarks import check_figures
from benchmarks.check_figures import Check, Verdict, arguments, chosen, compare, judge, main, pace_of
from benchmarks.figures import Better, Figure, FigureError, Run, read_runs, write_runs
from benchmarks.record import machine

LOWER = Figure("recovery", "taskd_s", 0.1, "s", 3, Better.LOWER, bar=0.2, spread=0.02)
HIGHER = Figure("share", "share", 0.8, "", 2, Better.HIGHER, bar=0.6, spread=0.1)


@pytest.mark.parametrize(
    ("stated", "value", "verdict"),
    [
        (LOWER, 0.1, Verdict.OK),
        (LOWER, 0.05, Verdict.OK),
        (LOWER, 0.119, Verdict.OK),
        (LOWER, 0.121, Verdict.WORSE),
        (LOWER, 0.21, Verdict.BROKEN),
        (LOWER, [0.19, 0.3], Verdict.WORSE),  # its lower end holds the bar
        (LOWER, [0.1, 0.3], Verdict.OK),
        (LOWER, [0.21, 0.3], Verdict.BROKEN),
        (HIGHER, 0.9, Verdict.OK),
        (HIGHER, 0.71, Verdict.OK),
        (HIGHER, 0.69, Verdict.WORSE),
        (HIGHER, 0.5, Verdict.BROKEN),
        (HIGHER, [0.3, 0.75], Verdict.OK),
    ],
)
def test_a_figure_is_compared_with_its_bar_and_its_stated_value(
    stated: Figure, value: float | list[int | float], verdict: Verdict
) -> None:
    now = Figure("now", "", value, "", 2)
    assert judge(stated, now, same_machine=True) is verdict


def test_another_kind_of_machine_is_held_to_the_bar_alone() -> None:
    assert judge(LOWER, Figure("now", "", 0.19, "s", 3), same_machine=False) is Verdict.OK
    assert judge(LOWER, Figure("now", "", 0.21, "s", 3), same_machine=False) is Verdict.BROKEN


@pytest.mark.parametrize(
    ("value", "pace", "verdict"),
    [
        (0.179, 1.5, Verdict.OK),
        (0.181, 1.5, Verdict.WORSE),
        (0.29, 1.5, Verdict.WORSE),
        (0.31, 1.5, Verdict.BROKEN),
        (0.21, 1.0, Verdict.BROKEN),
    ],
)
def test_a_slower_machine_needs_more_time(value: float, pace: float, verdict: Verdict) -> None:
    paced = msgspec.structs.replace(LOWER, paced=True)
    now = Figure("now", "", value, "s", 3)
    assert judge(paced, now, same_machine=True, pace=pace) is verdict
    assert judge(LOWER, now, same_machine=True, pace=pace) is judge(LOWER, now, same_machine=True)


def test_the_pace_is_that_of_stock_torchrun() -> None:
    stock = Figure("recovery_stock_s", "torchrun_s", 8.0, "s", 2)
    paced = msgspec.structs.replace(LOWER, paced=True)
    run = Run("", "", "", "here", "", [paced, stock])
    slow = compare(run, {"taskd_s": 0.29, "torchrun_s": 12.0}, "", quick=False)
    assert slow[0].verdict is Verdict.OK
    for measured, pace in ((4.0, 1.0), (12.0, 1.5), (80.0, 2.0)):
        found = compare(run, {"taskd_s": 0.1, "torchrun_s": measured}, "", quick=False)
        assert pace_of((one.stated, one.now) for one in found) == pace
    assert pace_of([]) == 1.0


def test_a_figure_without_bar_and_spread_is_not_judged() -> None:
    plain = Figure("runs", "runs", 20, "", 0)
    assert judge(plain, Figure("now", "", 900, "", 0), same_machine=True) is Verdict.UNJUDGED
    directed = Figure("ratio", "ratio", 20, "times", 0, Better.HIGHER)
    assert judge(directed, Figure("now", "", 2, "", 0), same_machine=True) is Verdict.UNJUDGED


def test_the_spread_is_the_range_of_the_samples() -> None:
    figure = Figure("recovery", "s", 0, "s", 3, Better.LOWER, samples="all/s")
    assert figure.measured({"s": 2, "all": {"s": [1, 2, 5]}}).spread == 4
    assert figure.measured({"s": 2, "all": {"s": [2]}}).spread is None
    with pytest.raises(FigureError, match="found None at 'all/s' of the result"):
        figure.measured({"s": 2})


def run_printing(result: object, figure: Figure, quick: object = None, status: int = 0) -> Run:
    def printing(what: object) -> str:
        return shlex.join(["python", "-c", f"print({json.dumps(what)!r}); raise SystemExit({status})"])

    return Run(printing(result), "" if quick is None else printing(quick), "2026-01-01", machine(), "0abc", [figure])


@pytest.mark.parametrize(
    ("run", "status", "key"),
    [
        (run_printing({"taskd_s": 9}, LOWER, quick={"taskd_s": 0.1}), 0, None),
        (run_printing({"taskd_s": 9}, LOWER, quick={"taskd_s": 0.15}), 1, "worse"),
        (run_printing({"taskd_s": 0.1}, LOWER, quick={"taskd_s": 0.3}), 1, "broken"),
        (run_printing({"taskd_s": 0.1}, LOWER, quick={}), 1, "failed"),
        (run_printing({"taskd_s": 0.1}, LOWER, quick={"taskd_s": 0.1}, status=3), 1, "failed"),
    ],
)
def test_the_exit_status_follows_from_the_verdicts(
    run: Run,
    status: int,
    key: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "figures.json"
    write_runs([run, Run("no headline", "", "", "", "", [])], path)
    before = path.read_bytes()
    monkeypatch.setattr(check_figures, "read_runs", lambda: read_runs(path))
    assert main(["--quick", "--json"]) == status
    last = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {name for name in ("broken", "worse", "failed") if last[name]} == ({key} if key else set())
    assert path.read_bytes() == before


def test_record_writes_value_spread_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figure = Figure("recovery", "s", 1, "s", 3, Better.LOWER, samples="all_s")
    run = run_printing({"s": 2, "all_s": [1.5, 2, 3]}, figure)
    write_runs([run], path)
    check = Check(path, "here", quick=False, record=True)
    check.measure(run, run.command)
    (recorded,) = read_runs(path)
    assert (recorded.machine, recorded.figures[0].value, recorded.figures[0].spread) == ("here", 2, 1.5)
    assert recorded.date > "2026-01-01"


def test_the_commands_of_each_mode() -> None:
    headline = Run("full", "short", "", "", "", [])
    other = Run("other", "", "", "", "", [])
    runs = [headline, other]
    assert list(chosen(runs, quick=True, everything=False)) == [(headline, "short")]
    assert list(chosen(runs, quick=False, everything=False)) == [(headline, "full")]
    assert list(chosen(runs, quick=False, everything=True)) == [(headline, "full"), (other, "other")]


def test_quick_figures_are_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--quick", "--record"])
    assert "expected one of them" in capsys.readouterr().err


def test_each_headline_has_a_bar() -> None:
    for run in read_runs():
        assert not run.quick or any(figure.bar is not None for figure in run.figures), run.command
