"""Buffers in no `state_dict` are sent if training changes them. For the transfer itself, see `test_restore`."""

import torch

from taskd.adaptors.training.parts.loose import Loose
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank


def make() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.register_buffer("mask", torch.ones(2), persistent=False)
    model[0].register_buffer("mean", torch.zeros(1), persistent=False)
    model[0].register_buffer("kept", torch.zeros(1))
    return model


def test_constants_stay() -> None:
    model = make()
    loose = Loose({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    model(torch.ones(1, 2))
    model.get_buffer("0.kept").add_(1)
    assert loose.changed() == {}
    assert set(loose.own()) == {"model.mask", "model.0.mean"}


def test_what_has_changed_in_place_or_was_replaced_is_sent() -> None:
    model = make()
    loose = Loose({"model": model})
    model.get_buffer("0.mean").add_(1)
    assert set(loose.changed()) == {"model.0.mean"}
    model.mask = torch.ones(2)
    assert set(loose.changed()) == {"model.0.mean", "model.mask"}
    other = make()
    Loose({"model": other}).put({"model.mask": torch.full((3,), 7.0), "model.0.mean": model.get_buffer("0.mean")})
    assert other.get_buffer("mask").tolist() == [7.0, 7.0, 7.0]
    assert other.get_buffer("0.mean").tolist() == [1.0]
    assert other.state_dict().keys() == model.state_dict().keys()


def test_a_buffer_made_in_inference_mode() -> None:
    """It has no version. No operation fails on it that would succeed without taskd."""
    model = make()
    with torch.inference_mode():
        model.register_buffer("table", torch.ones(3), persistent=False)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    model(torch.ones(1, 2)).sum().backward()
    state.optimizer.step()
    state.commit()
    assert "model.table" not in state._recovery.parts.loose.changed()
