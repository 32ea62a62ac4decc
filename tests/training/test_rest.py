"""The rest of an interrupted step decides whether it may be kept: scripts as users write them, interrupted."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.training.script.rest import Rest
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition

INTERRUPTED = 3


class Script:
    """Script's text in a file of its own, run to its interruption: `reduce` fails in the fourth step."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.path.write_text(textwrap.dedent(text).strip("\n"))
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        self.ema = AveragedModel(model)
        self.state = TrainState(model=model, optimizer=optimizer, scheduler=self.scheduler, ema=self.ema)
        self.state._recovery.begin(JobRank(0))
        self.names: dict[str, Any] = {
            "torch": torch,
            "state": self.state,
            "model": model,
            "optimizer": optimizer,
            "scheduler": self.scheduler,
            "ema": self.ema,
            "reduce": self.reduce,
            "log": [],
            "work": self.work,
        }

    def reduce(self, value: Any = None) -> Any:
        if self.state.step == INTERRUPTED:
            raise RuntimeError("a peer has died")
        return value

    def work(self) -> torch.Tensor:
        """Run torch's part of a step: the script calls it, but its lines are not in the script."""
        self.names["optimizer"].zero_grad()
        loss: torch.Tensor = self.names["model"](torch.ones(1, 2)).sum()
        loss.backward()
        self.names["optimizer"].step()
        return loss.detach()

    def run(self) -> RuntimeError:
        exec(compile(self.path.read_text(), str(self.path), "exec"), self.names)
        train: Callable[[], None] = self.names["train"]
        with pytest.raises(RuntimeError, match="a peer has died") as caught:
            train()
        return caught.value

    def line(self) -> str:
        """Line of the script that is marked `# here`."""
        lines = self.path.read_text().splitlines()
        return next((f"{self.path}:{at}" for at, line in enumerate(lines, 1) if line.endswith("# here")), "")


LEFT_ALONE = {
    "by a scheduler of each epoch": """
        def train():
            for epoch in range(2):
                for step in range(4):
                    loss = work()
                    reduce(loss)
                    log.append(loss.item())
                    state.commit()
                scheduler.step(loss)
                ema.update_parameters(model)
        """,
    "by one that has been called": """
        def train():
            for step in range(9):
                loss = work()
                if step % 5 == 3:
                    scheduler.step(loss)
                    ema.update_parameters(model)
                reduce(loss)
                state.commit()
        """,
    "by a helper": """
        def mean(value):
            value = reduce(value)
            return value / 2

        def train():
            for step in range(9):
                loss = work()
                total = mean(loss)
                print(total.item())
                state.commit()
                if step % 5 == 3:
                    scheduler.step(total)
                    ema.update_parameters(model)
        """,
    "with a library to be told": """
        import json

        def train():
            for step in range(9):
                loss = work()
                reduce(loss)
                json.dumps({"loss": loss.item()})  # here
                state.commit()
        """,
    "by a trainer's attributes": """
        class Trainer:
            def __init__(self):
                self.state, self.scheduler, self.total = state, scheduler, 0.0

            def train(self):
                for step in range(9):
                    loss = work()
                    loss = reduce(loss)
                    self.state.commit()
                    if step % 5 == 3:
                        self.scheduler.step(loss)

        def train():
            Trainer().train()
        """,
}
MAY_BE_MOVED = {
    "in some steps": """
        def train():
            for step in range(9):
                loss = work()
                if step % 5 == 3:
                    mean = reduce(loss)
                    scheduler.step(mean)
                    ema.update_parameters(model)
                state.commit()
        """,
    "as an argument that is worked out": """
        def train():
            for step in range(9):
                loss = work()
                scheduler.step(ema.update_parameters(model) or reduce(loss))
                ema.update_parameters(model)
                state.commit()
        """,
    "by what calls the helper": """
        def mean(value):
            return reduce(value)

        def train():
            for step in range(9):
                loss = work()
                scheduler.step(mean(loss))
                ema.update_parameters(model)
                state.commit()
        """,
    "by a function of the script": """
        def after_step(loss):
            scheduler.step(loss)
            ema.update_parameters(model)

        def train():
            for step in range(9):
                loss = reduce(work())
                after_step(loss)
                state.commit()
        """,
    "by another name": """
        def train():
            for step in range(9):
                loss = reduce(work())
                for follower in (scheduler.step, lambda loss: ema.update_parameters(model)):
                    follower(loss)
                state.commit()
        """,
    "earlier in a loop that goes on": """
        def train():
            for step in range(9):
                loss = work()
                for name in ("train", "test"):
                    if name == "test":
                        scheduler.step(loss)
                        ema.update_parameters(model)
                    reduce(loss)
                state.commit()
        """,
    "by a trainer's attributes": """
        class Trainer:
            def __init__(self):
                self.state, self.parts = state, [scheduler, ema]

            def train(self):
                for step in range(9):
                    loss = reduce(work())
                    self.parts[0].step(loss)
                    state.commit()

        def train():
            Trainer().train()
        """,
    "where the error was met": """
        def train():
            for step in range(9):
                try:
                    loss = reduce(work())
                    scheduler.step(loss)
                    ema.update_parameters(model)
                except RuntimeError as error:
                    raise RuntimeError(f"in step {step}: a peer has died") from error
                state.commit()
        """,
    "where nothing commits": """
        def train():
            for step in range(9):
                work()
                reduce()
                (lambda: state.commit())()
        """,
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_step_is_kept_where_nothing_would_have_moved_a_part(name: str, tmp_path: Path) -> None:
    script = Script(tmp_path / "train.py", LEFT_ALONE[name])
    error = script.run()
    assert script.state._recovery.condition(error) is Condition.STEPPED
    assert script.state._recovery.left_out == script.line()
    before = script.scheduler.last_epoch, int(script.ema.n_averaged)
    script.state._recovery.adopt()
    assert (script.scheduler.last_epoch, int(script.ema.n_averaged)) == before
    assert script.state.step == INTERRUPTED + 1


@pytest.mark.parametrize("name", MAY_BE_MOVED)
def test_a_step_is_torn_where_a_part_might_have_been_moved(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(tmp_path / "train.py", MAY_BE_MOVED[name])
    error = script.run()
    assert script.state._recovery.condition(error) is Condition.TORN
    assert script.state._recovery.condition() is Condition.TORN, "later too, when the error is gone"
    assert "step 4 cannot be kept: the optimizer has stepped, and ReduceLROnPlateau has not followed" in caplog.text


IN_PLACE = {
    "a tensor's own method": "ema_weight.lerp_(model.weight, 0.1)",
    "an operator": "ema_weight *= 0.9",
    "an item": "shadow['weight'] = model.weight.detach().clone()",
    "an attribute": "ema.weight = model.weight",
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_what_changes_in_place_may_be_an_average(change: str, tmp_path: Path) -> None:
    text = f"""
        ema_weight, shadow = model.weight.detach().clone(), {{}}
        def train():
            global ema_weight
            count = 0
            for step in range(9):
                loss = reduce(work())
                count += 1
                {change}
                state.commit()
        """
    script = Script(tmp_path / "train.py", text)
    assert Rest(script.run(), script.state.commit).may_move(script.ema)
    script = Script(tmp_path / "other.py", text.replace(change, "print(count)"))
    assert not Rest(script.run(), script.state.commit).may_move(script.ema)


def test_names_that_stand_for_something_strange(tmp_path: Path) -> None:
    """Only the script's own code raises: the step is torn, and the recovery continues."""
    text = """
        class Strange:
            __wrapped__ = property(lambda self: 1 / 0)
            def __getattribute__(self, name):
                raise ZeroDivisionError(name)
            def __eq__(self, other):
                raise ZeroDivisionError
            __hash__ = None

        strange = Strange()

        def loop(value):
            return value

        loop.__wrapped__ = loop

        def train():
            for step in range(9):
                loss = reduce(work())
                if step > 5:
                    strange(loss)
                    strange.log(loss)
                    loop(loss)
                state.commit()
        """
    script = Script(tmp_path / "train.py", text)
    assert Rest(script.run(), script.state.commit).may_move(script.scheduler)


def test_a_script_that_cannot_be_read(tmp_path: Path) -> None:
    script = Script(tmp_path / "train.py", LEFT_ALONE["by a scheduler of each epoch"])
    exec(compile(script.path.read_text(), str(tmp_path / "gone.py"), "exec"), script.names)
    with pytest.raises(RuntimeError) as caught:
        script.names["train"]()
    assert Rest(caught.value, script.state.commit).may_move(script.scheduler)
    assert Rest().may_move(script.scheduler)
