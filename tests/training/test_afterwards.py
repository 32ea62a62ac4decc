"""Work after a commit is done again after a recovery, and leaves the models as they were."""

import pytest
import torch
from torch import nn

from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank


def make() -> TrainState:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def step(state: TrainState) -> None:
    state.model(torch.ones(1, 1)).sum().backward()
    state.optimizer.step()
    state.commit()


def test_work_is_done_after_every_so_many_commits() -> None:
    state, seen = make(), []
    state.after_commit(lambda step: seen.append(("each", step)))
    state.after_commit(lambda step: seen.append(("third", step)), every=3)
    state._recovery.begin(JobRank(0))
    for _ in range(4):
        step(state)
    assert seen == [("each", 1), ("each", 2), ("each", 3), ("third", 3), ("each", 4)]


def test_interrupted_work_is_done_again_with_the_same_random_numbers() -> None:
    state = make()
    drawn: list[float] = []
    fails = [True]

    def evaluate(_step: int) -> None:
        state.model.eval()
        drawn.append(torch.rand(1).item())
        if fails.pop() if fails else False:
            raise RuntimeError("a peer has died")

    state.after_commit(evaluate, every=2)
    state._recovery.begin(JobRank(0))
    step(state)
    with pytest.raises(RuntimeError):
        step(state)
    assert state.model.training, "as it was"
    assert all(module.training for module in state.model)
    state._recovery.rollback()
    state._recovery.return_to(2)
    state._recovery.do_again()
    assert (state.step, len(drawn)) == (2, 2)
    assert drawn[0] == drawn[1]


def test_an_adopted_step_is_followed_once_all_are_together() -> None:
    state = make()
    seen: list[int] = []
    state.after_commit(seen.append)
    state._recovery.begin(JobRank(0))
    state.model(torch.ones(1, 1)).sum().backward()
    state.optimizer.step()
    state._recovery.adopt()
    assert seen == []
    state._recovery.do_again()
    assert seen == [1]


def test_nothing_is_due_before_the_first_step() -> None:
    state = make()
    seen: list[int] = []
    state.after_commit(seen.append)
    state._recovery.do_again()
    assert seen == []


def test_wrong_arguments() -> None:
    for wrong in (0, 1.5):
        with pytest.raises(ConfigError, match=r"after_commit got .* every="):
            make().after_commit(print, every=wrong)  # type: ignore[arg-type]
