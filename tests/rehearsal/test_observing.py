"""What the observer of a rehearsal reads: fingerprints, variables, lines, and the copy that runs begin with."""

import io
import json
import logging
import os
import random
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from taskd.adaptors.rehearsal import output
from taskd.adaptors.rehearsal.linewatch import LineWatch
from taskd.adaptors.rehearsal.observer import TrainingObserver
from taskd.adaptors.rehearsal.rehearse import parse
from taskd.adaptors.rehearsal.variables import look_up, variables
from taskd.adaptors.training.fingerprints import Fingerprint, of_part, of_random_numbers
from taskd.adaptors.training.state import TrainState
from taskd.core.rehearsal.kills import Kill, Moment
from taskd.errors import RehearsalError
from taskd.runtime.rehearsal import workspace
from taskd.runtime.rehearsal.order import RehearsalOrder
from taskd.runtime.rehearsal.workspace import Workspace
from tests.launch import Launcher
from tests.rehearsal.catalog import ROOT
from tests.shim.armed import until


class Counter:
    def __init__(self) -> None:
        self.seen = 0
        self.shadow = {"a": torch.zeros(3)}


def test_equal_content_has_equal_fingerprints() -> None:
    assert (
        Fingerprint({"a": [1, 2.5, "x"], "b": torch.ones(3)}).text
        == Fingerprint({"b": torch.ones(3), "a": [1, 2.5, "x"]}).text
    )
    assert Fingerprint({"one", "two", "three"}).text == Fingerprint({"three", "two", "one"}).text
    assert Fingerprint(Counter()).text == Fingerprint(Counter()).text
    assert Fingerprint([1]).text != Fingerprint([1.0]).text
    assert Fingerprint(deque([1])).text != Fingerprint(deque([2])).text
    assert Fingerprint(open).text == Fingerprint(iter([])).text == ""


def test_generators_are_known_by_their_state() -> None:
    for make, draw in (
        (lambda: torch.Generator().manual_seed(1), lambda dice: torch.rand(1, generator=dice)),
        (lambda: random.Random(1), lambda dice: dice.random()),
    ):
        one, other = make(), make()
        assert Fingerprint(one).text == Fingerprint(other).text != ""
        assert Fingerprint(one).moves
        draw(other)
        assert Fingerprint(one).text != Fingerprint(other).text


def test_an_optimizers_state_is_in_its_fingerprint_and_reading_draws_nothing() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    numbers = of_random_numbers()
    before, weights = of_part(optimizer), of_part(model)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert of_part(optimizer) != before
    assert of_part(model) != weights
    assert of_random_numbers() == numbers


def step(counter: Counter, total: float, dice: torch.Generator) -> Any:
    images = torch.ones(2)
    total += 1.0
    names = [total]
    del images, names
    return variables(sys._getframe(), frozenset())


def test_only_variables_that_go_on_are_looked_at() -> None:
    found = {one.name: one for one in step(Counter(), 0.0, torch.Generator()) if one.local}
    assert "total" in found
    assert "images" not in found
    assert found["counter.shadow"].moves
    assert not found["counter.seen"].moves
    assert look_up(sys._getframe(), "found") is not None


def change(counter: Counter) -> None:
    counter.seen += 1


def test_the_line_that_changes_a_thing_is_found() -> None:
    counter, found = Counter(), []
    other = 0

    def look(frame: FrameType, name: str) -> str:
        value = look_up(frame, name)
        return "" if value is None else Fingerprint(value).text

    watch = LineWatch(["counter.seen"], look, lambda name, line: found.append((name, line)))
    before = sys.gettrace()
    try:
        watch.start(sys._getframe())
        other += 1
        change(counter)
        other += 1
    finally:
        sys.settrace(before)
        sys._getframe().f_trace = None
    assert found == [("counter.seen", f"{__file__}:{change.__code__.co_firstlineno + 1}")]
    assert other == 2


def test_lines_are_heard_with_the_line_that_prints_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    with (tmp_path / "out").open("w") as sink:
        monkeypatch.setattr(sys, "stdout", sink)
        output.listen(lambda text, line: heard.append((text, line)))
        print("step", 3)
        here = sys._getframe().f_lineno - 1
    assert heard == [("step 3", f"{__file__}:{here}")]
    assert (tmp_path / "out").read_text() == "step 3\n"


def test_each_run_begins_with_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = tmp_path / "project"
    for name in ("data", "env", "__pycache__"):
        (source / name).mkdir(parents=True)
    (source / "env" / "pyvenv.cfg").touch()
    (source / "data" / "big").write_text("rows")
    (source / "train.py").write_text("pass")
    (source / "link").symlink_to("../elsewhere")
    (tmp_path / "elsewhere").write_text("far")
    place = Workspace(source, ["data"])
    place.prepare()
    (place.work / "train.py").write_text("changed")
    (place.work / "checkpoint").write_text("new")
    assert (place.work / "data").is_symlink()
    assert (place.work / "env").is_symlink()
    assert (place.work / "link").read_text() == "far"
    assert not (place.work / "__pycache__").exists()
    place.prepare()
    assert (place.work / "train.py").read_text() == "pass"
    assert not (place.work / "checkpoint").exists()
    assert place.as_users(f"at {place.work}/train.py:3 in {place.work}") == f"at train.py:3 in {source}"
    place.close()
    assert not place.root.exists()
    assert (source / "data" / "big").read_text() == "rows"
    assert sorted(path.name for path in source.iterdir()) == ["__pycache__", "data", "env", "link", "train.py"]


def test_a_directory_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_BYTES", 100)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_bytes(bytes(200))
    with pytest.raises(RehearsalError, match="--share data"):
        Workspace(tmp_path)
    Workspace(tmp_path, ["data"]).close()
    with pytest.raises(RehearsalError, match="found no such file or folder below"):
        Workspace(tmp_path, ["../else"])


def test_torchruns_command_line_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    script = parse(["train.py", "--steps", "3"])
    assert script.options == ("--nproc-per-node=2", "--standalone")
    assert script.program == ("train.py", "--steps", "3")
    script = parse(["--nproc_per_node", "4", str(tmp_path / "train.py")])
    assert script.options == ("--nproc_per_node", "4", "--standalone")
    assert (script.program, script.ranks) == (("train.py",), 4)


DYING = """
import sys
from pathlib import Path
from taskd.adaptors.rehearsal.deaths import Deaths
from taskd.core.rehearsal.kills import Kill, Moment

deaths = Deaths(Path(sys.argv[1]), 0, 2, [Kill(0, 0, 3, Moment.COMMITTED), Kill(1, 1, 4, Moment.COMMITTED)], print)
deaths.at_commit(2)
deaths.at_commit(4)  # without an agent nobody is held
deaths.at_commit(3)
"""


def test_who_dies_behind_a_commit_waits_for_the_others_to_be_there(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start(["python", "-c", DYING, tmp_path], env={"PYTHONPATH": str(ROOT)})
    until(lambda: (tmp_path / "at-0-0").exists() or process.poll() is not None, "it is at the commit")
    assert process.poll() is None
    assert not (tmp_path / "killed-0").exists()
    (tmp_path / "at-0-1").touch()
    assert process.wait(60) == -signal.SIGKILL
    assert (tmp_path / "killed-0").exists()
    assert not (tmp_path / "killed-1").exists()
    assert "step 3" in launcher.output(process)


def test_who_hears_of_an_opened_file_opens_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard of while the interpreter may hold `tempfile`'s lock: to ask for the directory then never ends."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    monkeypatch.setattr(logging.getLogger("taskd"), "handlers", [])
    observer = TrainingObserver(folder, RehearsalOrder(last=2, least=1, after_s=1.0), 0, 1)
    monkeypatch.setattr("tempfile.tempdir", None)
    observer.opens("/elsewhere/file")
    assert tempfile.tempdir is None
    assert '"path": "/elsewhere/file"' in (folder / "rank-0").read_text()
    os.close(observer._file)


@pytest.mark.parametrize("over", [False, True])
def test_of_a_start_behind_the_end_only_errors_and_last_lines_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, over: bool
) -> None:
    """Its steps would stand in the place of those that the kills have struck."""
    monkeypatch.setattr(logging.getLogger("taskd"), "handlers", [])
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    kill = Kill(3, 1, 2, Moment.BEHIND)
    if over:
        (tmp_path / "killed-3").touch()
    left = Kill(2, 0, 9, Moment.STEPPED)
    observer = TrainingObserver(tmp_path, RehearsalOrder(last=3, least=1, after_s=1.0, kills=(left, kill)), 0, 2)
    assert (observer._deaths.planned(Moment.STEPPED, 9) is None) is over, "nobody dies in it"
    model = torch.nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    recovery = state._recovery
    observer.enters(recovery, begins=True)
    for step in (1, 2):
        observer._heard(f"line {step}", "train.py:1")
        recovery.step = step
        observer.committed(step, None, whole=True)
    observer._heard("last line", "train.py:9")
    observer.died(ValueError("no"), None)
    kinds = [json.loads(line) for line in (tmp_path / "rank-0").read_text().splitlines()]
    found = [(one["k"], one.get("text")) for one in kinds]
    last: list[tuple[str, str | None]] = [("printed", "last line"), ("died", "ValueError: no")]
    first: list[tuple[str, str | None]] = [
        ("begin", None),
        ("printed", "line 1"),
        ("commit", None),
        ("printed", "line 2"),
        ("commit", None),
    ]
    assert found == ([("anew", None), *last] if over else first + last)
    os.close(observer._file)
