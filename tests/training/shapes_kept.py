# ruff: noqa: B007
"""Training functions that keep the best weights, or an order of the data: some are exact, some are not.

The tests read them and never call them. `tests/training/test_reading.py` compares.
"""

import copy

import numpy as np
import torch

from tests.training.shapes import EPOCHS, binned, bins, evaluate, exact, finds, learn, loader, model, state


@finds("best")
def best_weights_for_the_caller():
    best, kept = 0.0, copy.deepcopy(model.state_dict())
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        accuracy = evaluate()
        if accuracy > best:
            best = accuracy
            kept = copy.deepcopy(model.state_dict())
    return best, kept


@finds("best")
def best_tensors_for_the_caller():
    best, kept = 0.0, {}
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        accuracy = evaluate()
        if accuracy > best:
            best = accuracy
            kept = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    return kept


@finds("best")
def best_weights_loaded_at_the_end():
    best, kept = 0.0, None
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        accuracy = evaluate()
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)


@finds("losses", "total")
def numbers_beside_the_model():
    total, losses = 0.0, []
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            loss = learn(x, y)
            state.commit()
            total += loss.item()
            losses.append(loss.item())
    return model, {"model": model.state_dict(), "losses": losses}, total


@finds("total")
def a_sum_where_the_model_is():
    total = torch.zeros(()).to(model.weight.device)
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            total.add_(learn(x, y).detach())
            state.commit()
    print(total)
    return total


def mix(of, epoch):
    order = torch.randperm(len(of.bins), generator=torch.Generator().manual_seed(epoch))
    of.bins = [of.bins[at] for at in order.tolist()]


@finds("of.bins")
def mixes_bins_each_epoch():
    for epoch in state.epochs(EPOCHS):
        if epoch > 0:
            mix(bins, epoch)
        for x, y in binned:
            learn(x, y)
            state.commit()


@finds("best", "history")
def best_accuracy_for_the_caller():
    best, history = 0.0, []
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        accuracy = evaluate()
        history.append(accuracy)
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "best.pt")
    return best, history


@finds("last")
def the_last_loss_for_the_caller():
    last = 0.0
    for step in range(state.step, 9):
        loss = learn(torch.ones(1), torch.ones(1))
        state.commit()
        last = loss.item() if step == 8 else last
    return last


@exact
def numbers_of_the_state_for_the_caller():
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
    return state.step, evaluate()


@exact
def the_model_for_the_caller():
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
    return model, copy.deepcopy(model.state_dict())


def begin(of, epoch):
    order = torch.randperm(len(of.bins), generator=torch.Generator().manual_seed(epoch))
    of.bins = [[at] for at in order.tolist()]


@exact
def makes_bins_of_the_epoch():
    for epoch in state.epochs(EPOCHS):
        begin(bins, epoch)
        for x, y in binned:
            learn(x, y)
            state.commit()


@exact
def makes_bins_of_the_epoch_in_one_line():
    for epoch in state.epochs(EPOCHS):
        bins.bins = torch.randperm(len(bins.bins), generator=torch.Generator().manual_seed(epoch)).tolist()
        for x, y in binned:
            learn(x, y)
            state.commit()


def window(step):
    starts = np.random.default_rng((3, step)).integers(20, size=4)
    rows = torch.stack([torch.arange(4.0) + at for at in starts])
    return rows, torch.from_numpy(starts)


@exact
def fetches_ahead_what_the_step_says():
    x, y = window(state.step)
    for step in range(state.step, 40):
        learn(x, y)
        x, y = window(step + 1)
        state.commit()


def drawn(dice, step):
    return torch.from_numpy(dice.integers(20, size=4)) + step


@finds("x")
def fetches_ahead_what_a_generator_gives():
    dice = np.random.default_rng(3)
    x = drawn(dice, state.step)
    for step in range(state.step, 40):
        learn(x, x)
        x = drawn(dice, step + 1)
        state.commit()


@finds("x")
def fetches_ahead_what_a_generator_gives_within_the_step():
    dice = np.random.default_rng(3)
    x = torch.from_numpy(dice.integers(state.step + 20, size=4))
    for step in range(state.step, 40):
        learn(x, x)
        x = torch.from_numpy(dice.integers(step + 20, size=4))
        state.commit()


@finds("x")
def fetches_ahead_at_random():
    x = torch.randint(20, (4,))
    for step in range(state.step, 40):
        learn(x, x)
        x = torch.randint(20, (4,))
        state.commit()
