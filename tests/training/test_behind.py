"""Work between a commit and the next step that a fault leaves out is reported, with the script's line."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from taskd.adaptors.training.script.behind import BehindCommit, done_again
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan
from taskd.wire.state import Transfer


def plan(target_step: int, *, adopt: bool = False, members: tuple[int, ...] = ()) -> WorldPlan:
    return WorldPlan(
        generation=1,
        world_size=2,
        members=tuple(map(JobRank, members)),
        store_host="h",
        store_port=1,
        target_step=target_step,
        adopt=(WorldRank(0), WorldRank(1)) if adopt else (),
        transfers=(Transfer(donor=WorldRank(1), receivers=(WorldRank(0),)),),
        timeout_s=9.0,
    )


def error_of(call: Callable[[], object]) -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        call()
    return caught.value


def train(script: Path, behind: BehindCommit) -> None:
    """Call the script from a library, as the resilient function is: no frame of this file belongs to the script."""
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    thread = threading.Thread(target=names["train"], args=(behind.committed, lambda _: None))
    thread.start()
    thread.join()


def fails() -> None:
    raise RuntimeError("a peer has died")


@pytest.mark.parametrize(
    ("between", "target_step", "others", "told"),
    [
        (True, 7, [0, None, 1], True),
        (True, 7, [1, None, 1], False),
        (False, 7, [0, None, 1], False),
        (True, 8, [0, None, 0], False),
    ],
    ids=["told, though rank 0 was in its next step", "one rank tells", "inside a step", "another has committed more"],
)
def test_what_stood_behind_the_commit_is_told_with_its_line(
    caplog: pytest.LogCaptureFixture, *, between: bool, target_step: int, others: list[int | None], told: bool
) -> None:
    behind = BehindCommit()
    behind.committed()
    behind.note(error_of(fails), 7, between=between)
    mine = behind.known(plan(target_step))
    behind.tell([mine if other is None else [other, 1, 0] for other in others], plan(target_step), WorldRank(1))
    line = f"{__file__}:{fails.__code__.co_firstlineno + 1} was interrupted between the commit of step 7"
    assert (line in caplog.text) is told


def test_a_steps_own_error_is_nothing_behind_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    behind, loss = BehindCommit(), torch.ones(1, requires_grad=True).sum()
    loss.register_hook(lambda _gradient: fails())
    behind.note(error_of(loss.backward), 7, between=True)
    assert behind.known(plan(7)) == [False, False, False]
    behind.tell([[0, 0, 0], [0, 0, 0]], plan(7), WorldRank(1))
    assert caplog.text == ""


ROUNDS = {
    "in the loop": """
        def train(commit, work):
            work("set up")  # again
            for step in range(9):
                work("zero_grad")  # again
                work("forward")  # again
                commit()
                if step >= 0:
                    work("log")  # here
            work("end")  # again
    """,
    "in a helper": """
        def train_step(commit, work):
            work("zero_grad")  # again
            commit()
            work("log")  # here

        def train(commit, work):
            while True:
                work("batch")  # again
                train_step(commit, work)
                work("save")  # here
    """,
    "in two loops": """
        def train(commit, work):
            for epoch in range(9):
                work("shuffle")  # again
                for step in range(2):
                    work("zero_grad")  # again
                    commit()
                work("evaluate")  # here
    """,
    "in the loop's head": """
        def batches(work):
            while True:
                work("read")  # again
                yield

        def train(commit, work):
            for batch in batches(work):
                commit()
    """,
}


@pytest.mark.parametrize("name", ROUNDS)
def test_what_begins_the_next_step_is_done_again_and_not_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only interrupted lines after the commit are reported."""
    lines = [line.removeprefix("        ") for line in ROUNDS[name].strip("\n").splitlines()]
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines))
    for number, line in enumerate(lines, 1):
        if not line.endswith(("# again", "# here")):
            continue
        behind = BehindCommit()
        behind.note(ended_at(script, number, behind), 7, between=True)
        caplog.clear()
        behind.tell([behind.known(plan(7))], plan(7), WorldRank(0))
        assert ("was interrupted between" in caplog.text) is line.endswith("# here"), line


def ended_at(script: Path, line: int, behind: BehindCommit) -> BaseException:
    """Return the error of a training that fails at that line: after the first commit, or before it if none comes."""
    text = script.read_text().splitlines()[line - 1]

    def work(what: str) -> None:
        if f'"{what}"' in text and (what == "set up" or behind.known(plan(7))[1]):
            fails()

    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    with ThreadPoolExecutor(1) as threads:  # a library calls it, like the resilient function
        error = threads.submit(names["train"], behind.committed, work).exception(timeout=10)
    assert error is not None
    return error


LOOPS = {
    "in a condition of the loop": """
        def train(commit, work):
            for step in range(2):
                commit()
                if step % 2 == 0:  # here
                    work(step)
    """,
    "after the inner loop, whose rest only prints": """
        def train(commit, work):
            for epoch in range(2):
                for step in range(2):
                    with memoryview(b""):
                        commit()
                        print("step", len(str(step)))
                work(epoch)  # here
    """,
    "after the helper that commits": """
        def train_step(commit):
            commit()

        def train_epoch(commit, work):
            for _ in range(2):
                train_step(commit)
            work("epoch")  # here

        def train(commit, work):
            while True:
                train_epoch(commit, work)
                break
            work("end")
    """,
    "after the training": """
        def train(commit, work):
            work("begin")
            for step in range(2):
                work(step)
                commit()
            work("end")
    """,
    "what state.epochs does again": """
        class state:
            def epochs(n):
                return range(n)

        def train(commit, work):
            for epoch in state.epochs(2):
                for step in range(2):
                    commit()
                work(epoch)
    """,
    "the same in a choice, in another call": """
        class state:
            def epochs(n):
                return range(n)

        def train(commit, work):
            for epoch, _ in enumerate(range(2) if state is None else state.epochs(2)):
                for step in range(2):
                    commit()
                work(epoch)
    """,
    "the same by a name": """
        class state:
            def epochs(n):
                return range(n)

        def train(commit, work):
            rounds = state.epochs(2)
            for epoch in rounds:
                for step in range(2):
                    commit()
                work(epoch)
    """,
    "a name of other rounds": """
        class state:
            def epochs(n):
                return range(n)

        def train(commit, work):
            rounds, others = range(2), state.epochs(2)
            for epoch in rounds:
                for step in range(2):
                    commit()
                work(epoch)  # here
    """,
    "a function that is only defined there": """
        def train(commit, work):
            for step in range(2):
                try:
                    commit()
                finally:
                    def later():
                        work(step)
    """,
    "in another branch": """
        def train(commit, work):
            for step in range(2):
                if step:
                    work(step)
                else:
                    commit()
    """,
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("adopt", [False, True], ids=["a rank is new", "the step is adopted"])
def test_what_may_be_left_out_is_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], *, adopt: bool
) -> None:
    script, behind = tmp_path / "train.py", BehindCommit()
    lines = [line.removeprefix("        ") for line in LOOPS[name].strip("\n").splitlines()]
    script.write_text("\n".join(lines))
    train(script, behind)
    capsys.readouterr()
    known = [[0, 1, 0], [0, int(adopt), 0]]
    behind.tell(known, plan(7, adopt=adopt), WorldRank(1))
    assert caplog.text == "", "another rank tells"
    behind.tell(known, plan(7, adopt=adopt), WorldRank(0))
    here = next((number for number, line in enumerate(lines, 1) if line.endswith("# here")), None)
    assert bool(caplog.text) is bool(here)
    if here:
        assert f"{script}:{here} stands behind the commit, and may be left out after step 7" in caplog.text
        assert ("rank 1 may have been in it" in caplog.text) is not adopt


@pytest.mark.parametrize(("adopt", "target_step", "told"), [(True, 8, True), (False, 8, False), (True, 9, False)])
def test_what_was_left_of_an_adopted_step_is_told(
    caplog: pytest.LogCaptureFixture, *, adopt: bool, target_step: int, told: bool
) -> None:
    behind, order = BehindCommit(), plan(target_step, adopt=adopt)
    behind.note(error_of(fails), 7, between=False, rest="train.py:12")
    known = [[0, 0, 0], behind.known(order)]
    behind.tell(known, order, WorldRank(0))
    assert caplog.text == "", "the rank that was before it tells"
    behind.tell(known, order, WorldRank(1))
    line = f"train.py:12 stands between optimizer.step() and the commit, and is left out of step {target_step}"
    assert (line in caplog.text) is told


@pytest.mark.parametrize("pulse", [True, False], ids=["in the core", "in Python"])
def test_an_evaluation_behind_the_commit_is_no_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pulse: bool
) -> None:
    model = torch.nn.Linear(1, 1)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    if not pulse:
        monkeypatch.setattr(state._recovery._rng, "sources", lambda: None)  # as if a generator could not be read
    state._recovery.attach(str(tmp_path / "position"))
    assert state._recovery.shows_steps is pulse
    state._recovery.begin(JobRank(0))
    model(torch.ones(1, 1)).sum().backward()
    state.optimizer.step()
    state.commit()
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 1))
    model.train()
    assert state._recovery.between_steps
    model(torch.ones(1, 1))
    assert not state._recovery.between_steps


def test_who_may_have_been_in_it_is_named_by_its_number_in_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranks 1 and 2 are absent."""
    behind, script = BehindCommit(), tmp_path / "train.py"
    script.write_text("def train(commit, work):\n    for step in range(2):\n        commit()\n        work(step)\n")
    train(script, behind)
    behind.tell([[0, 1, 0], [0, 0, 0]], plan(7, members=(0, 3)), WorldRank(0))
    assert "rank 3 may have been in it" in caplog.text


def test_nothing_is_told_where_all_ranks_live_and_are_clean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    behind, script = BehindCommit(), tmp_path / "train.py"
    script.write_text("def train(commit, work):\n    for step in range(2):\n        commit()\n        work(step)\n")
    train(script, behind)
    behind.tell([[0, 1, 0], [0, 1, 0]], plan(7), WorldRank(0))
    assert caplog.text == ""


def test_the_place_is_sought_once_in_each_world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It adds no cost to a step, and a script may change to another loop."""
    behind, first, second = BehindCommit(), tmp_path / "first.py", tmp_path / "second.py"
    for script in (first, second):
        script.write_text("def train(commit, work):\n    for step in range(2):\n        commit()\n        work(step)\n")
        train(script, behind)
    for script in (first, second):
        caplog.clear()
        behind.tell([[0, 1, 0], [0, 0, 0]], plan(7), WorldRank(0))
        assert f"{script}:4 stands behind the commit" in caplog.text
        train(second, behind)


def test_a_script_without_text_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    behind = BehindCommit()
    names: dict[str, Any] = {"commit": behind.committed}
    exec(compile("def train():\n  for i in range(1):\n    commit()\n    work()", "gone.py", "exec"), names)
    with pytest.raises(NameError):
        names["train"]()
    behind.tell([[0, 1, 0], [0, 0, 0]], plan(7), WorldRank(0))
    assert caplog.text == ""


def test_what_an_adapter_does_again_is_not_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def evaluate(commit):\n    commit()\n    raise RuntimeError('a peer has died')\n")
    behind = BehindCommit()
    names: dict[str, Any] = {"commit": behind.committed}
    exec(compile(script.read_text(), str(script), "exec"), names)
    exec(compile("def epochs():\n    commit()\n    evaluate(commit)\n", "<adapter>", "exec"), names)
    adapter = done_again(names["epochs"])
    behind.note(error_of(adapter), 4, between=True)
    assert behind.known(plan(4)) == [False, False, False]
