"""Comparison of a step that is done twice: the first difference has a name."""

import pytest
import torch
from torch import nn

from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof import step_digests
from taskd.adaptors.training.proof.step_digests import StepDigests


def made() -> tuple[nn.Module, torch.optim.Optimizer, Parts]:
    """Return a model after a backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    return model, optimizer, Parts(sort({"model": model, "optimizer": optimizer}, None, None, taken=()))


def grad_of(model: nn.Module, name: str) -> torch.Tensor:
    grad = model.get_parameter(name).grad
    assert grad is not None
    return grad


def first(before: StepDigests, parts: Parts) -> str:
    return str(before.first_difference(StepDigests.of(parts)))


def test_nothing_differs() -> None:
    _, _, parts = made()
    assert StepDigests.of(parts).first_difference(StepDigests.of(parts)) is None


def test_the_first_that_differs_has_a_name() -> None:
    model, optimizer, parts = made()
    before = StepDigests.of(parts)
    grad_of(model, "2.weight")[0, 1] += 1e-7
    assert first(before, parts) == "the gradient of model.2.weight"
    torch.rand(1)
    assert first(before, parts) == "the random numbers of torch"
    model.get_buffer("1.num_batches_tracked").add_(1)
    assert first(before, parts) == "the buffer model.1.num_batches_tracked"
    optimizer.param_groups[0]["lr"] = 0.2
    assert first(before, parts) == "the hyperparameters of optimizer, group 0"
    with torch.no_grad():
        model.get_parameter("0.bias").add_(1e-6)
    assert first(before, parts) == "the parameter model.0.bias"


def test_a_gradient_that_is_missing_differs() -> None:
    model, _, parts = made()
    before = StepDigests.of(parts)
    model.get_parameter("0.weight").grad = None
    assert first(before, parts) == "the gradient of model.0.weight"


def test_what_only_an_optimizer_has_is_compared_too() -> None:
    """ZeRO is such a case: its master weights have the gradients."""
    model, _, _ = made()
    masters = [one.detach().clone() for one in model.parameters()]
    for master, one in zip(masters, model.parameters(), strict=True):
        master.grad, one.grad = one.grad, None
    parts = Parts(sort({"model": model, "optimizer": torch.optim.SGD(masters, lr=0.1)}, None, None, taken=()))
    before = StepDigests.of(parts)
    assert before.has_gradients
    assert masters[2].grad is not None
    masters[2].grad[0] += 1e-6
    assert first(before, parts) == "the gradient of optimizer, parameter 2"
    masters[1].add_(1.0)
    assert first(before, parts) == "the parameter optimizer, parameter 1"
    for master in masters:
        master.grad = None
    assert not StepDigests.of(parts).has_gradients


def test_gradients_that_another_optimizer_is_to_step_do_not_count() -> None:
    """A GAN is such a case: its generator still has the gradients of the step before."""
    model, _, _ = made()
    two = [torch.optim.SGD(model.get_submodule(name).parameters(), lr=0.1) for name in ("0", "2")]
    parts = Parts(sort({"model": model, "first": two[0], "second": two[1]}, None, None, taken=()))
    before = StepDigests.of(parts, two[0])
    grad_of(model, "2.weight")[0, 1] += 1.0
    assert before.first_difference(StepDigests.of(parts, two[0])) is None
    grad_of(model, "0.weight")[0, 1] += 1.0
    assert str(before.first_difference(StepDigests.of(parts, two[0]))) == "the gradient of model.0.weight"


def test_small_differences_of_gradients_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds where kernels may be nondeterministic. On a CPU they are deterministic."""
    model, _, parts = made()
    grad_of(model, "2.weight").fill_(1.0)
    on_cpu = StepDigests.of(parts)
    monkeypatch.setattr(step_digests, "_may_vary", lambda _parameter: True)
    before = StepDigests.of(parts)
    grad_of(model, "2.weight").mul_(1 + 1e-6)
    assert before.is_noise(StepDigests.of(parts))
    assert not on_cpu.is_noise(StepDigests.of(parts))
    grad_of(model, "2.bias").zero_()
    before = StepDigests.of(parts)
    grad_of(model, "2.bias").add_(1e-5)
    assert before.is_noise(StepDigests.of(parts)), "rounding alone is in it, as in the bias of attention's keys"
    grad_of(model, "2.weight").mul_(1.01)
    assert not before.is_noise(StepDigests.of(parts)), "a counter may do that"
    torch.rand(1)
    assert not before.is_noise(StepDigests.of(parts))
