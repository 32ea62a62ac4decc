"""Scripts with a fault between the changes of a step: GANs, critics, closures. The step is done again."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition


class Fault(Exception):  # noqa: N818 - it stands for the error of a peer's death
    """Death of a peer."""


class Gan:
    """A generator with BatchNorm and an average, a discriminator that steps `critics` times, a scheduler."""

    def __init__(self, critics: int) -> None:
        torch.manual_seed(0)
        self.critics = critics
        self.faces = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        self.judge = nn.Linear(3, 1)
        first = torch.optim.AdamW(self.judge.parameters(), lr=0.05)
        second = torch.optim.AdamW(self.faces.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(second, 2)
        self.average = torch.optim.swa_utils.AveragedModel(self.faces)
        self.state = TrainState(
            faces=self.faces, judge=self.judge, first=first, second=second, schedule=self.schedule, average=self.average
        )
        self.state._recovery.begin(JobRank(0))

    def step(self, fault: str = "") -> None:
        state = self.state
        for critic in range(self.critics):
            state.first.zero_grad()
            (self.judge(self.faces(torch.randn(4, 2))) - self.judge(torch.randn(4, 3))).mean().backward()
            meet(fault, f"judged {critic}")
            state.first.step()
        state.second.zero_grad()
        self.judge(self.faces(torch.randn(4, 2))).mean().neg().backward()
        meet(fault, "between")
        state.second.step()
        self.schedule.step()
        self.average.update_parameters(self.faces)
        meet(fault, "stepped")
        state.commit()

    def seen(self) -> dict[str, Any]:
        return {name: copy.deepcopy(part.state_dict()) for name, part in self.state._recovery.parts.replicated.items()}


def meet(fault: str, place: str) -> None:
    if fault == place:
        raise Fault


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine, theirs)
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, list | tuple):
        return len(mine) == len(theirs) and all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    return bool(mine == theirs)


@pytest.mark.parametrize("critics", [1, 3])
@pytest.mark.parametrize("place", ["judged 0", "between", "stepped"])
def test_a_gan_does_its_step_again(critics: int, place: str) -> None:
    whole, gan = Gan(critics), Gan(critics)
    torch.manual_seed(7)
    for _ in range(5):
        whole.step()
    torch.manual_seed(7)
    for _ in range(3):
        gan.step()
    before = gan.seen()
    with pytest.raises(Fault):
        gan.step(place)
    assert gan.state._recovery.condition() is Condition.CLEAN
    gan.state._recovery.rollback()
    assert same(gan.seen(), before)
    assert gan.state._recovery.condition() is Condition.CLEAN
    gan.state._recovery.return_to(3)
    for _ in range(2):
        gan.step()
    assert same(gan.seen(), whole.seen())


def test_what_is_not_needed_is_removed() -> None:
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(6):
        state.optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        state.optimizer.step()
        state.commit()
    assert len(state.optimizer._optimizer_step_pre_hooks) == 1
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
def test_a_fault_inside_a_closure(kind: Any) -> None:
    """Nothing changes before the first backward pass is done. LBFGS goes on changing parameters, and is undone."""
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=kind(model.parameters(), lr=0.001))
    state._recovery.begin(JobRank(0))
    calls, faulty = [0], [0]

    def closure() -> Any:
        calls[0] += 1
        state.optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        if calls[0] == faulty[0]:
            raise Fault
        return loss

    for _ in range(6):
        state.optimizer.step(closure)
        state.commit()
    for later in (1, 3) if kind is torch.optim.LBFGS else (1,):
        before = copy.deepcopy(model.state_dict()), copy.deepcopy(state.optimizer.state_dict())
        faulty[0] = calls[0] + later
        with pytest.raises(Fault):
            state.optimizer.step(closure)
        assert state._recovery.condition() is Condition.CLEAN
        state._recovery.rollback()
        assert same((model.state_dict(), state.optimizer.state_dict()), before)
        state.optimizer.step(closure)
        assert state._recovery.condition() is Condition.STEPPED or kind is torch.optim.LBFGS
        state.commit()


def test_what_has_not_come_by_the_end_of_a_closure_changes_nothing() -> None:
    """A device may detect the loss of a peer only late."""
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    state._recovery.begin(JobRank(0))
    lost = [False]

    def verify() -> None:
        if lost[0]:
            raise Fault

    def closure() -> Any:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    state._recovery.undo.verify = verify
    for _ in range(3):
        state.optimizer.step(closure)
        state.commit()
    before = copy.deepcopy(model.state_dict()), copy.deepcopy(state.optimizer.state_dict())
    lost[0] = True
    with pytest.raises(Fault):
        state.optimizer.step(closure)
    assert state._recovery.condition() is Condition.CLEAN
    assert same((model.state_dict(), state.optimizer.state_dict()), before)


def test_a_commit_whose_results_have_not_come_counts_nothing() -> None:
    """A scaler may have skipped the step because of values left by a broken collective."""
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    state._recovery.begin(JobRank(0))

    def verify() -> None:
        raise Fault

    state._recovery.verify = verify
    with pytest.raises(Fault):
        state.commit()
    assert state.step == 0
    assert state._recovery.condition() is Condition.CLEAN


class Perturbing(torch.optim.SGD):
    """Optimizer that moves the parameters before it calls the closure, as sharpness-aware minimization does."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(1)
        return super().step(closure)


class Own(torch.optim.Optimizer):
    """Optimizer that calls the closure first, as torch's do. taskd cannot know this."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(1)
        return loss


def _moved_by_another(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].add_(1)


@pytest.mark.parametrize(
    ("kind", "hooked", "condition"),
    [
        (torch.optim.Adam, False, Condition.CLEAN),
        (Own, False, Condition.CLEAN),
        (Perturbing, False, Condition.TORN),
        (torch.optim.Adam, True, Condition.TORN),
    ],
    ids=["torch's", "of one's own", "moves first", "a hook moves first"],
)
@pytest.mark.parametrize("keyword", [True, False], ids=["by keyword", "by place"])
@pytest.mark.parametrize("in_core", [True, False], ids=["in the core", "in Python"])
def test_what_was_changed_before_a_closure_is_seen(
    kind: Any, condition: Condition, tmp_path: Path, *, hooked: bool, keyword: bool, in_core: bool
) -> None:
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=kind(model.parameters(), lr=0.001))
    if in_core:
        state._recovery.attach(str(tmp_path / "position"))
        assert state._recovery.shows_steps
    state._recovery.begin(JobRank(0))
    if hooked:
        state.optimizer.register_step_pre_hook(_moved_by_another)

    def step(closure: Any) -> Any:
        return state.optimizer.step(closure=closure) if keyword else state.optimizer.step(closure)

    def closure() -> Any:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    def fails() -> Any:
        closure()
        raise Fault

    for _ in range(6):
        assert torch.is_tensor(step(closure)), "what the closure returns comes to the script"
        state.commit()
    with pytest.raises(Fault):
        step(fails)
    assert state._recovery.condition() is condition


def test_a_closure_where_the_first_group_has_no_parameters() -> None:
    """This happens if weight decay applies to some parameters and a model has none of these."""
    model = nn.Linear(2, 2)
    groups: list[Any] = [{"params": [], "weight_decay": 0.1}, {"params": [*model.parameters()]}]
    state = TrainState(model=model, optimizer=torch.optim.AdamW(groups))
    state._recovery.begin(JobRank(0))

    def closure() -> Any:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    assert torch.is_tensor(state.optimizer.step(closure))
    state.commit()


def test_what_was_changed_behind_a_closure_is_seen() -> None:
    """Its first parameter has no gradient, the second is updated, and Adam refuses the third."""
    model, table = nn.Linear(2, 2), nn.Embedding(2, 2, sparse=True)
    groups: list[Any] = [{"params": [model.bias, model.weight]}, {"params": [table.weight]}]
    state = TrainState(model=model, table=table, optimizer=torch.optim.Adam(groups))
    state._recovery.begin(JobRank(0))
    model.bias.requires_grad = False
    before = model.weight.detach().clone()

    def closure() -> Any:
        loss = (model(torch.ones(1, 2)) + table(torch.tensor([0]))).square().sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="sparse"):
        state.optimizer.step(closure)
    assert not torch.equal(model.weight, before)
    assert state._recovery.condition() is Condition.TORN


@pytest.mark.parametrize("way", ["expose", "met"])
def test_a_trainer_says_where_ranks_meet_when_no_model_of_the_state_runs_between_two_steps(way: str) -> None:
    """One module may hold both models, with the whole step as its own forward pass."""
    torch.manual_seed(0)
    both = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in both]
    state = TrainState(both=both, first=optimizers[0], second=optimizers[1])
    recovery = state._recovery
    recovery.begin(JobRank(0))
    if way == "expose":
        recovery.undo.expose()
    for number in range(6):
        before = copy.deepcopy(both.state_dict())
        for part, optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            part(torch.ones(1, 2)).sum().backward()
            if way == "met":
                recovery.undo.met()
            optimizer.step()
            if number == 5:
                break
        else:
            state.commit()
    assert recovery.condition() is Condition.CLEAN
    recovery.rollback()
    assert same(dict(both.state_dict()), dict(before))
