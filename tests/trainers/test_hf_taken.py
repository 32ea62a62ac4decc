"""How a trainer stood at a commit, and what each rank has for itself."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from taskd.adaptors.trainers.hf.own import HfOwn
from taskd.adaptors.trainers.hf.taken import HfTaken, told
from taskd.adaptors.training import tree

PLACE = {"epoch": 1, "batches": 4, "committed": True}


class Patience:
    """A callback whose state transformers can export."""

    def __init__(self) -> None:
        self.counter = 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"counter": self.counter}}

    def from_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Falls:
    """A scheduler of transformers' own."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.bad = 0

    def state_dict(self) -> dict[str, Any]:
        return {"bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bad = state["bad"]


def trainer() -> Any:
    """What of a transformers' Trainer is looked at."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    state = SimpleNamespace(
        global_step=3, epoch=0.5, best_metric=None, is_world_process_zero=True, log_history=[{"loss": 2.0}],
        stateful_callbacks={"Patience": [1]},
    )  # fmt: skip
    return SimpleNamespace(
        state=state,
        control=SimpleNamespace(should_log=True, should_training_stop=False),
        callback_handler=SimpleNamespace(callbacks=[object(), Patience()]),
        optimizer=optimizer,
        lr_scheduler=Falls(optimizer),
        args=SimpleNamespace(logging_nan_inf_filter=True),
        current_flos=0,
        _tr_loss=torch.tensor(0.0),
        _total_loss_scalar=1.5,
        _globalstep_last_logged=2,
        _metrics={"train": defaultdict(list, {"entropy": [1.0, 2.0]}), "eval": defaultdict(list)},
    )


def train_on(one: Any) -> None:
    """All that an evaluation and a log change."""
    one.state.best_metric, one.state.epoch = 0.1, 0.9
    one.state.log_history.append({"eval_loss": 3.0})
    one.state.stateful_callbacks["Patience"].append(2)
    one.control.should_log, one.control.should_training_stop = False, True
    one.callback_handler.callbacks[1].counter = 5
    one._total_loss_scalar, one._globalstep_last_logged = 9.0, 3
    one._metrics["train"].clear()
    one._metrics["eval"]["entropy"].append(1.0)
    one.lr_scheduler.bad, one.optimizer.param_groups[0]["lr"] = 4, 0.25


def shown(one: Any) -> Any:
    metrics = {mode: dict(values) for mode, values in one._metrics.items()}
    counted = (one._total_loss_scalar, one._globalstep_last_logged, one.callback_handler.callbacks[1].counter)
    rates = (one.lr_scheduler.bad, one.optimizer.param_groups[0]["lr"])
    return vars(one.state), vars(one.control), counted, rates, metrics


def test_a_survivor_stands_as_it_stood() -> None:
    one = trainer()
    taken = HfTaken(one, 3, {**PLACE, **told(torch.tensor(0.5), 0.1)})
    history = one.state.log_history
    train_on(one)
    for _ in range(2):  # a second fault finds it as the first did
        taken.put_back(one)
        assert shown(one) == shown(trainer())
        assert one.state.log_history is history
        train_on(one)


def test_a_new_process_takes_a_peers() -> None:
    peer, mine = trainer(), trainer()
    taken = HfTaken(peer, 3, {**PLACE, **told(torch.tensor(0.5), 0.1)})
    train_on(peer)
    train_on(mine)
    mine.state.is_world_process_zero = False
    given = HfTaken.given(tree.unpack(tree.pack(taken.written())))
    given.put_back(mine)
    assert not mine.state.is_world_process_zero
    mine.state.is_world_process_zero = True
    assert shown(mine) == shown(trainer())
    assert (given.step, given.told) == (3, {**PLACE, "grad_norm": 0.5, "learning_rate": 0.1})


@pytest.mark.parametrize("loss", [1.25, float("nan")])
def test_the_sum_is_put_down_before_the_backward_pass(loss: float) -> None:
    one = trainer()
    own = HfOwn(one)
    put_down: list[float] = []
    own.record = lambda: put_down.append(msgspec.msgpack.decode(own.pack())[0])
    one._tr_loss += 0.5
    own.begin(64.0)
    own.backward(torch.tensor(loss))
    own.end(torch.tensor(loss))
    one._tr_loss += one._tr_loss / 2 if math.isnan(loss) else loss  # as the trainer does where a loss is not finite
    assert put_down == [float(one._tr_loss)]
    newcomer = trainer()
    HfOwn(newcomer).unpack(own.pack())
    assert (float(newcomer._tr_loss), newcomer.current_flos) == (float(one._tr_loss), 64.0)


def test_a_log_begins_the_sum_anew() -> None:
    one = trainer()
    own = HfOwn(one)
    own.begin(1.0)
    own.end(torch.tensor(2.0))
    one._tr_loss += 2.0
    one._tr_loss -= one._tr_loss
    own.logged()
    assert msgspec.msgpack.decode(own.pack())[0] == 0.0
