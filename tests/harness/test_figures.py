"""Figures in the pages are those that were recorded, and recorded figures are those that a command has printed."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import (
    FILE,
    ROOT,
    Figure,
    FigureError,
    Run,
    by_name,
    named,
    pages,
    read_runs,
    rendered,
    unmarked,
    write_runs,
)
from benchmarks.record import commit, record

FIGURES = by_name(read_runs())
SPEED = Figure("speed", "taskd/s", 0.25, "s", 3)


def of_page(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=of_page)
def test_a_page_states_what_is_recorded(page: Path) -> None:
    text = page.read_text()
    assert rendered(text, FIGURES) == text, "run: python scripts/make-docs.py"
    if page.name != "CHANGELOG.md":  # it describes the past
        assert list(unmarked(text, FIGURES)) == [], "a figure that is recorded stands here without its marks"


def test_each_figure_stands_on_a_page() -> None:
    assert FIGURES.keys() == {name for page in pages() for name in named(page.read_text())}


def test_lint_finds_no_page_stale() -> None:
    command = [sys.executable, "scripts/make-docs.py", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=150).returncode == 0


def test_a_stale_page_is_found() -> None:
    page = "A step takes <!-- figure:speed -->0.1 s<!-- /figure -->, or 0.250 s."
    assert rendered(page, {"speed": SPEED}) == "A step takes <!-- figure:speed -->0.250 s<!-- /figure -->, or 0.250 s."
    assert list(unmarked(page, {"speed": SPEED})) == ["speed: 0.250 s"]


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("<!-- figure:sped -->1 s<!-- /figure -->", "found the figure sped, expected one of figures.json"),
        ("<!-- figure:speed -->1\ns<!-- /figure -->", "found 0 whole figures, and more marks"),
        ("<!-- figure:speed -->1 s<!-- /figure --> <!-- figure:speed -->1 s", "found 1 whole figures, and more marks"),
    ],
)
def test_marks_that_are_none(page: str, wrong: str) -> None:
    with pytest.raises(FigureError, match=wrong):
        rendered(page, {"speed": SPEED})


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (58.04, "times", 0, "58 times"),
        (0.0027, "%", 2, "0.27 %"),
        ([89, 68.2], "µs", 0, "68 to 89 µs"),
        ([0.771, 0.769], "s", 2, "0.77 s"),
        (350000, "", 0, "350,000"),
    ],
)
def test_how_a_figure_is_shown(value: float | list[float], unit: str, digits: int, text: str) -> None:
    assert Figure("one", "one", value, unit, digits).text == text


def test_the_file_is_as_it_is_written(tmp_path: Path) -> None:
    write_runs(read_runs(), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == FILE.read_bytes()


def prints(text: str, status: int = 0) -> str:
    return shlex.join(["python", "-c", f"print('begins'); print({text!r}); raise SystemExit({status})"])


def recorded(tmp_path: Path, command: str) -> Path:
    path = tmp_path / "figures.json"
    old = ("", "2026-01-01", "here", "0abc")
    write_runs([Run("another", *old, []), Run(command, *old, [SPEED])], path)
    return path


def test_a_command_is_measured_and_recorded(tmp_path: Path) -> None:
    command = prints('{"taskd": {"s": [0.5, 0.75]}}')
    path = recorded(tmp_path, command)
    assert [figure.text for figure in record(command, "there", path).figures] == ["0.500 to 0.750 s"]
    other, run = read_runs(path)
    assert (other.date, other.machine, other.commit) == ("2026-01-01", "here", "0abc")
    assert run.commit == commit()
    assert (run.machine, run.figures[0].value) == ("there", [0.5, 0.75])
    assert run.date > "2026-01-01"


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (prints("{}"), "speed: found None at 'taskd/s' of the result, expected a number"),
        (prints('{"taskd": {"s": ">40"}}'), "speed: found '>40' at 'taskd/s'"),
        (prints("slow"), "found 'slow' in its last line, expected JSON"),
        (prints('{"taskd": {"s": 1}}', status=1), "found exit status 1, expected 0"),
    ],
)
def test_what_cannot_be_recorded_changes_nothing(tmp_path: Path, command: str, wrong: str) -> None:
    path = recorded(tmp_path, command)
    before = path.read_bytes()
    with pytest.raises(FigureError, match=wrong):
        record(command, "there", path)
    assert path.read_bytes() == before


def test_a_command_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"found 'fly', expected a command of figures.json: another; python -c"):
        record("fly", "there", recorded(tmp_path, prints("{}")))


def test_a_name_that_stands_there_twice(tmp_path: Path) -> None:
    none = ("", "", "", "")
    write_runs([Run("one", *none, [SPEED]), Run("two", *none, [SPEED])], tmp_path / "figures.json")
    with pytest.raises(FigureError, match="found speed more than once"):
        read_runs(tmp_path / "figures.json")
