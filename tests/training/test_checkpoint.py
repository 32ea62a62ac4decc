"""Checkpoints of one process: restored content, choice of a checkpoint, and reports of parts that do not fit."""

import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.state import TrainState
from taskd.errors import CheckpointError
from taskd.wire.messages import Condition
from tests.training.checkpoint_state import contents, draws, make, train

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def save(state: TrainState, shelf: Path, job_id: str = "job") -> Path:
    return dump(state._recovery, shelf, step=state.step, job_id=job_id, reason="a node was lost")


def trained(steps: int = 3) -> TrainState:
    state = make(1)
    train(state, steps)
    return state


def names(shelf: Path) -> list[str]:
    return sorted(path.name for path in shelf.iterdir())


def test_a_process_alone(tmp_path: Path) -> None:
    state = trained()
    path = save(state, tmp_path)
    following = draws()
    again = make(5)
    assert load_latest(again, str(tmp_path)) == 3
    assert contents(again) == contents(state)
    assert again.model.head.weight is again.model.embed.weight
    assert (again._recovery.condition(), again.sampler.epoch, draws()) == (Condition.CLEAN, 3, following)
    train(again, 1)
    manifest = json.loads((path / "taskd.json").read_text())
    assert (manifest["step"], manifest["world_size"], manifest["reason"]) == (3, 1, "a node was lost")
    assert manifest["parts"] == {
        "model": "Net",
        "optimizer": "AdamW",
        "scheduler": "MultiStepLR",
        "sampler": "DistributedSampler",
    }
    assert manifest["files"].keys() | {"taskd.json"} == set(os.listdir(path))


def test_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    state = trained()
    save(state, tmp_path)
    train(state, 2)
    again = make(5)
    load_latest(again, tmp_path)
    train(again, 2)
    assert contents(again) == contents(state)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("kind", ["SGD", "LBFGS", "Adam"])
def test_optimizers_with_little_or_odd_state(tmp_path: Path, kind: str, steps: int) -> None:
    def build(seed: int) -> TrainState:
        torch.manual_seed(seed)
        net = nn.Linear(3, 2)
        return TrainState(model=net, optimizer=getattr(torch.optim, kind)(net.parameters(), lr=0.1 + seed))

    def advance(state: TrainState) -> None:
        def loss() -> torch.Tensor:
            state.optimizer.zero_grad()
            value: torch.Tensor = state.model(torch.ones(3)).square().sum()
            value.backward()
            return value

        state.optimizer.step(loss)
        state.commit()

    state, again = build(0), build(1)
    for _ in range(steps):
        advance(state)
    save(state, tmp_path)
    assert load_latest(again, tmp_path) == steps
    assert [group["lr"] for group in again.optimizer.param_groups] == [0.1]
    for one in (state, again):
        advance(one)
    assert torch.equal(state.model.weight, again.model.weight)


class Part:
    """Part of the user's, with keys and values that torch's own format does not keep."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[Any, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        if not isinstance(state["value"], type(self.value)):
            raise TypeError(f"a {type(state['value']).__name__}")
        self.value = state["value"]


def two_nets(seed: int) -> TrainState:
    """Return equal names in two models: one optimizer for both, one for the second, and an unused parameter."""
    torch.manual_seed(seed)
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.unused = nn.Parameter(torch.ones(2))
    groups: list[dict[str, Any]] = [{"params": [second.bias], "lr": torch.tensor(0.5)}, {"params": [second.weight]}]
    both = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
    return TrainState(
        first=torch.compile(first, backend="eager") if seed else first,
        second=second,
        both=both,
        one=torch.optim.Adam(groups),
        replicated={"of_mine": Part({1: (torch.ones(2), [torch.tensor(3)]), "name": None, "large": 1 << 70})},
    )


def test_several_models_and_parts_of_the_user(tmp_path: Path) -> None:
    state, again = two_nets(0), two_nets(1)
    state.first(state.second(torch.ones(2))).square().sum().backward()
    state.both.step()
    state.one.step()
    state.commit()
    state.of_mine.value[1][0].add_(1)
    save(state, tmp_path)
    again.of_mine.value = {}
    assert load_latest(again, tmp_path) == 1
    for name in ("first", "second"):
        for one, other in zip(getattr(state, name).parameters(), getattr(again, name).parameters(), strict=True):
            assert torch.equal(one, other)
    for name in ("both", "one"):
        one, other = getattr(state, name).state_dict(), getattr(again, name).state_dict()
        assert repr(one) == repr(other)
    assert repr(again.of_mine.value) == repr(state.of_mine.value)


def test_a_part_that_refuses_leaves_the_state_torn(tmp_path: Path) -> None:
    save(two_nets(0), tmp_path)
    again = two_nets(0)
    again.of_mine.value = "text"
    with pytest.raises(CheckpointError, match=r"TypeError\('a dict'\); expected parts as .*of_mine: Part"):
        load_latest(again, tmp_path)
    assert again._recovery.condition() is Condition.TORN


def test_torch_alone_can_read_it(tmp_path: Path) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    state = trained()
    path = save(state, tmp_path)
    net = make(5).model
    optimizer = torch.optim.AdamW(net.parameters())
    wanted: dict[str, Any] = {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer),
    }
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(wanted, checkpoint_id=path)
    set_optimizer_state_dict(net, optimizer, wanted["optimizer"])
    read = TrainState(model=net, optimizer=optimizer, scheduler=state.scheduler)
    assert contents(read)["tensors"] == contents(state)["tensors"]
    settings, expected = optimizer.param_groups[0], state.optimizer.param_groups[0]
    assert [settings[key] for key in ("lr", "betas")] == [expected[key] for key in ("lr", "betas")]


def test_the_newest_complete_one_is_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = trained(2)
    save(state, tmp_path)
    for _ in range(10):
        train(state, 1)
    assert state.step == 12
    expected = contents(state)
    save(state, tmp_path)  # step-12 comes after step-2, although it sorts before it by name
    for damage in ("manifest", "missing", "short", "content"):
        train(state, 1)
        spoil(save(state, tmp_path), damage)
    (tmp_path / ".step-99.abc.partial").mkdir()
    (tmp_path / "step-98").write_text("")
    (tmp_path / "step-97-of-mine").mkdir()
    again = make(5)
    assert load_latest(again, tmp_path) == 12
    assert contents(again) == expected
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for part in ("step-13 is passed over: taskd.json: ", "step-14 is passed over: __0_0.distcp: No such file",
                 "step-15 is passed over: .metadata has ", "step-16 is passed over: it cannot be read",
                 "step-98 is passed over"):  # fmt: skip
        assert sum(part in line for line in said) == 1, (part, said)
    assert not any("step-97" in line or "step-99" in line for line in said)


def spoil(path: Path, damage: str) -> None:
    data = path / "__0_0.distcp"
    match damage:
        case "manifest":
            (path / "taskd.json").write_text("{")
        case "missing":
            data.unlink()
        case "short":
            os.truncate(path / ".metadata", 100)
        case "content":
            data.write_bytes(bytes(data.stat().st_size))


def test_nothing_to_load(tmp_path: Path) -> None:
    assert load_latest(make(1), tmp_path) is None
    assert load_latest(make(1), tmp_path / "not yet there") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        load_latest(make(1), tmp_path / "file")


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "of the user").write_text("precious")
    state = trained()
    first = save(state, tmp_path)
    other = save(state, tmp_path, job_id="another")
    assert save(state, tmp_path) == first
    assert save(state, tmp_path, job_id="another") == other
    assert names(tmp_path) == ["step-3", "step-3.1", "step-3.2"]
    assert (tmp_path / "step-3" / "of the user").read_text() == "precious"
    assert load_latest(make(5), tmp_path) == 3


def test_an_unclean_state_is_not_saved(tmp_path: Path) -> None:
    state = trained()
    state.model(torch.randint(50, (8,))).backward()
    state.optimizer.step()
    with pytest.raises(CheckpointError, match="rank 0 is stepped at step 3, expected clean at step 3"):
        save(state, tmp_path)
    assert not names(tmp_path)


# Parts that do not fit.


def test_a_part_is_missing(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    save(TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1)), tmp_path)
    other = nn.Linear(2, 2)
    before = other.weight.clone()
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(CheckpointError, match="has the parts model, optimizer, expected also scheduler; pass"):
        load_latest(TrainState(model=other, optimizer=optimizer, scheduler=scheduler), tmp_path)
    assert torch.equal(other.weight, before)


def test_a_part_too_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(trained(), tmp_path)
    state = make(5)
    assert load_latest(TrainState(model=state.model, optimizer=state.optimizer), tmp_path) == 3
    assert "part 'scheduler' is only there or only here" in caplog.text


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Linear(2, 3), r"model: bias has shape \[2\], expected \[3\]; weight has shape \[2, 2\], expected \[3, 2\]"),
        (nn.Linear(2, 2, bias=False), "model: bias is in the checkpoint, but not in the model"),
        (nn.Sequential(nn.Linear(2, 2)), "0.bias is in the model, but not in the checkpoint.* and 1 more"),
    ],
)
def test_another_model(tmp_path: Path, other: nn.Module, message: str) -> None:
    model = nn.Linear(2, 2)
    save(TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1)), tmp_path)
    state = TrainState(model=other, optimizer=torch.optim.SGD(other.parameters(), lr=1))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_latest(state, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert state._recovery.condition() is Condition.CLEAN


def test_other_parameter_groups(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    save(TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1)), tmp_path)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
    optimizer = torch.optim.SGD(groups, lr=1)
    with pytest.raises(CheckpointError, match="group 0 of 1 in the checkpoint has bias, weight, expected 2 groups and"):
        load_latest(TrainState(model=model, optimizer=optimizer), tmp_path)


# Disks.


def test_no_directory_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"step 3 was not written to .*: rank 0: .*Not a directory"):
        save(trained(), tmp_path / "file" / "shelf")


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=8k", r"\[Errno 28\] No space left on device \(0\.01 MB are free, 0\.02 MB are to be written\)"),
        ("size=64k", r"\[Errno 28\] No space left on device \(0\.00 MB are free"),  # in torch's own writing
        ("ro", "Read-only file system"),
    ],
)
def test_a_disk_that_is_full_or_cannot_be_written(tmp_path: Path, options: str, message: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
    try:
        state = trained()
        before = contents(state)
        with pytest.raises(CheckpointError, match=message):
            save(state, disk)
        assert contents(state) == before
        assert not names(disk)
    finally:
        subprocess.run(["umount", disk], check=True)
