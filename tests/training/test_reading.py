"""Findings in the text of a training function: code that is not exact after a recovery, and no other code."""

import ast
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.read_findings import ReadFinding, Weight
from taskd.adaptors.training.proof.reading import read_function, refuse_inexact
from tests.scripts.catalog import SCRIPTS
from tests.training import shapes_ahead, shapes_exact, shapes_found, shapes_kept, shapes_mended, shapes_warned
from tests.training.shapes import FOUND, state

ROOT = Path(__file__).resolve().parents[2]
NOTHING: Any = ((), {})


def read(function: Callable[..., Any]) -> list[ReadFinding]:
    return read_function(function, NOTHING, state)


@pytest.mark.parametrize("name", FOUND)
def test_what_is_read_in_a_training_function(name: str) -> None:
    function, expected = FOUND[name]
    found = read(function)
    assert bool(found) == bool(expected), found
    for word in expected:
        assert any(repr(word) in one.text or f"({word}(" in one.text for one in found), found
    for one in found:
        file, _, line = one.line.rpartition(":")
        code = function.__code__
        assert file == code.co_filename
        assert code.co_firstlineno - 40 < int(line) < code.co_firstlineno + 40
        assert one.remedy


@pytest.mark.parametrize("how", ["ahead", "ahead_nxt", "ahead_in_turn", "ahead_in_a_branch", "ahead_after_none"])
def test_a_batch_that_is_fetched_ahead_is_the_only_finding(how: str) -> None:
    """A step that is done twice shows whether the batch can be handed out again."""
    assert [one.weight for one in read(getattr(shapes_ahead, how))] == [Weight.AHEAD]


def test_a_batch_ahead_excuses_nothing_that_is_made_of_a_loss() -> None:
    found = read(shapes_ahead.best_of_a_batch_ahead)
    assert sorted((one.weight.name, repr("best") in one.text) for one in found) == [("AHEAD", False), ("REFUSED", True)]


def test_a_finding_names_both_lines() -> None:
    first = shapes_found.critic_of_an_iterator.__code__.co_firstlineno
    (found,) = read(shapes_found.critic_of_an_iterator)
    file = shapes_found.__file__
    assert found.line == f"{file}:{first + 4}"
    assert found.text.startswith(f"{file}:{first + 4} counts the batches of 'loader' with 'i', and ")
    assert f" {file}:{first + 7} (optimizer.step()) depends on it" in found.text


@pytest.mark.parametrize(
    ("where", "found"), [("behind", True), ("before", False), ("both", False), ("behind_an_epoch", False)]
)
def test_a_loop_that_is_left_behind_the_commit(where: str, found: bool, caplog: pytest.LogCaptureFixture) -> None:
    function = getattr(shapes_warned, where)
    findings = read(function)
    assert [one.weight for one in findings] == [Weight.WARNED] * found
    enter(peer := Peer(), function)
    assert ("leaves its loop behind the commit" in caplog.text) is found
    assert not peer.refused


@pytest.mark.parametrize("how", ["ends", "only_raises", "goes_on", "another_kind", "elsewhere"])
def test_an_error_that_the_script_handles_as_the_last_one(how: str, caplog: pytest.LogCaptureFixture) -> None:
    function = getattr(shapes_warned, how)
    findings = read(function)
    assert [one.weight for one in findings] == [Weight.WARNED] * (how == "ends")
    enter(peer := Peer(), function)
    assert ("is reached at each recovery too" in caplog.text) is (how == "ends")
    assert not peer.refused


@pytest.mark.parametrize(
    "how",
    [
        *("numbers_beside_the_model", "a_sum_where_the_model_is", "best_accuracy_for_the_caller"),
        "the_last_loss_for_the_caller",
    ],
)
def test_what_is_gathered_for_the_caller(how: str, caplog: pytest.LogCaptureFixture) -> None:
    function = getattr(shapes_kept, how)
    assert {one.weight for one in read(function)} == {Weight.WARNED}
    enter(peer := Peer(), function)
    assert "after a recovery it knows only the steps since" in caplog.text
    assert not peer.refused


@pytest.mark.parametrize(("how", "weight"), [("looks", Weight.WARNED), ("looks_with_a_default", Weight.NOTED)])
def test_a_look_at_a_batch_as_an_epoch_begins(how: str, weight: Weight) -> None:
    """A second run of a step would read another batch: the self-check then does no step twice."""
    findings = read(getattr(shapes_warned, how))
    assert [(one.weight, "looks at a batch" in one.hinders) for one in findings] == [(weight, True)]


@pytest.mark.parametrize(
    ("how", "by"),
    [
        ("cleans_up", "finally"),
        ("cleans_up_after_all", "except"),
        *((how, "") for how in ("closes", "cleans_up_elsewhere", "ends", "sets_back")),
    ],
)
def test_no_step_is_done_twice_where_a_script_cleans_up(how: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    """A second exit from the function would run the block in a healthy job."""
    hinders = enter(peer := Peer(), getattr(shapes_warned, how)).hinders_proof
    assert (f"cleans up in its {by!r} block, which a healthy job runs only at its end" in hinders) is bool(by)
    assert bool(hinders) is bool(by)
    assert ("shapes_warned.py" in caplog.text) is (how in ("ends", "cleans_up_after_all"))
    assert not peer.refused


@pytest.mark.parametrize(("how", "found"), [("goes_through_all_again", False), ("begins_anew", True)])
def test_a_script_that_goes_through_all_again_and_leaves_out_what_was_done(how: str, found: bool) -> None:
    assert bool(read_function(getattr(shapes_warned, how), NOTHING, shapes_warned.bare)) is found


def test_what_has_no_text_is_not_judged() -> None:
    names: dict[str, Any] = {"state": state}
    exec("def train():\n    for i, x in enumerate(state.loader):\n        state.commit()", names)
    assert read(names["train"]) == []
    assert read(len) == []
    assert read(torch.nn.functional.cross_entropy) == []


def test_a_long_function_is_read_in_no_time(tmp_path: Path) -> None:
    """500 lines: about ten times as long as Python's own parser, which takes 5 to 15 ms."""
    body = "\n".join(
        f"            a{n} = model(x).sum() * {n}\n            print(a{n}.item() if i % {n + 1} == 0 else 0)"
        for n in range(250)
    )
    text = f"""
from tests.training.shapes import loader, model, optimizer, state
def train():
    for epoch in state.epochs(2):
        for i, (x, y) in enumerate(loader):
{body}
            optimizer.step()
            state.commit()
"""
    path = tmp_path / "long_script.py"
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    ratios = [took_s(lambda: read(names["train"])) / took_s(lambda: ast.parse(text)) for _ in range(7)]
    assert statistics.median(ratios) < 12, "each pair is measured side by side: other work slows both alike"


def took_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


class Peer:
    """Agent's link, as far as the reading uses it."""

    def __init__(self, *, allows: bool = False) -> None:
        self.config = SimpleNamespace(allows_inexact=allows)
        self.refused = ""

    def refuse(self, *, no_rebuild: str, no_newcomer: str, anew: str) -> None:
        assert not no_newcomer
        self.refused = no_rebuild


def enter(
    peer: Any, function: Callable[[], None] = shapes_found.critic_of_an_iterator, *, tells: bool = True
) -> Refusals:
    refusals = Refusals(peer.refuse, tells)
    refuse_inexact(function, NOTHING, state, refusals, peer)
    return refusals


@pytest.mark.parametrize("tells", [True, False])
def test_all_ranks_refuse_and_one_tells(caplog: pytest.LogCaptureFixture, *, tells: bool) -> None:
    enter(peer := Peer(), tells=tells)
    assert "counts the batches of 'loader' with 'i'" in peer.refused
    assert [": at a fault all processes start anew. " in one.getMessage() for one in caplog.records] == [True] * tells


def test_what_is_allowed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    enter(peer := Peer(allows=True))
    assert not peer.refused
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert ": not exact after a recovery. Count with state.step" in record.getMessage()


def test_what_fails_in_the_reading_stops_no_training(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        @property
        def __wrapped__(self) -> Any:
            raise OSError("of the script's own")

    enter(peer := Peer(), Odd())  # type: ignore[arg-type]
    assert not peer.refused
    (record,) = caplog.records
    assert record.getMessage() == "the training function could not be read, and is not judged"


def test_every_shape_is_played() -> None:
    modules = (one.__file__ for one in (shapes_mended, shapes_exact, shapes_found, shapes_ahead, shapes_kept))
    assert {function.__code__.co_filename for function, _ in FOUND.values()} == set(modules)
    assert len(FOUND) > 45


PROGRAMS = [
    *(ROOT / "tests" / "scripts" / "programs").glob("*.py"),
    *(ROOT / "examples" / "scripts").glob("*.py"),
    *(ROOT / "examples" / name for name in ("digits_ddp.py", "chargpt_ddp.py")),
]
EXPECTED = {
    *("batch_ahead", "behind_train", "counting_wrapper", "leftover_batch", "logged_exceptions", "look_at_batch"),
    *("prefetcher", "stochastic_depth"),
}
"""Scripts with findings: programs that end in another way, or return their collected values."""
WITHOUT = {"no_sdk", "no_sdk_snapshot"}
"""Scripts without a training function."""


@pytest.mark.slow
def test_nothing_is_found_in_scripts_that_are_recovered_exactly(tmp_path: Path) -> None:
    ranks = {script.name: script.ranks for script in SCRIPTS}
    given = [f"{path}:{ranks.get(path.stem, 2)}" for path in PROGRAMS]
    command = [sys.executable, str(Path(__file__).with_name("programs") / "read_scripts.py"), *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCRIPT_FOLDER": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert {path.stem for path in PROGRAMS} - found.keys() == WITHOUT, done.stderr
    assert {name for name, lines in found.items() if lines} == EXPECTED, found
