# ruff: noqa: B007, B905, UP028
"""Training functions, as people write them, that would not be exact after a recovery, each with its findings.

The tests read them and never call them. `tests/training/test_reading.py` compares.
"""

import itertools
from itertools import islice

import torch
from torch.nn.functional import cross_entropy

from tests.training.shapes import (
    EPOCHS,
    evaluate,
    finds,
    held_out,
    learn,
    loader,
    model,
    optimizer,
    sampler,
    scheduler,
    state,
    stateful,
)


@finds("i")
def critic_of_an_iterator():
    for epoch in state.epochs(EPOCHS):
        batches = iter(loader)
        for i, (x, y) in enumerate(batches):
            cross_entropy(model(x), y).backward()
            if i % 5 == 0:
                optimizer.step()
            state.commit()


@finds("i")
def left_behind_the_commit():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            learn(x, y)
            state.commit()
            if i + 1 == 20:
                break


def scheduled(data):
    for i, (x, y) in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = i
        learn(x, y)
        state.commit()


@finds("i")
def counts_of_two_loaders_at_one_line():
    """taskd does not know the position of one of them."""
    for _ in state.epochs(EPOCHS):
        scheduled(loader)
        scheduled(stateful)


@finds("i")
def counts_of_a_slice():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(islice(loader, 5)):
            for group in optimizer.param_groups:
                group["lr"] = i
            learn(x, y)
            state.commit()


@finds("loss")
def loss_of_a_slice():
    for epoch in state.epochs(EPOCHS):
        for x, y in islice(loader, 5):
            loss = learn(x, y)
            state.commit()
        print(loss.item())


@finds("loss")
def loss_of_two_loaders():
    for epoch in state.epochs(EPOCHS):
        for (x, y), _ in zip(loader, held_out):
            loss = learn(x, y)
            state.commit()
        print(loss.item())


def batches_of_one():
    for x, y in loader:
        loss = learn(x, y)
        yield loss
    print(loss.item())


@finds("loss")
def loss_of_a_generator():
    for epoch in state.epochs(EPOCHS):
        for _ in batches_of_one():
            state.commit()


@finds("last")
def last_of_an_inner_loop():
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            last = 0
            loss = learn(x, y)
            state.commit()
            for k in range(3):
                last = loss * k
        print(last)


@finds("itertools.islice")
def a_number_of_batches_by_the_module():
    for epoch in state.epochs(EPOCHS):
        for x, y in itertools.islice(loader, 20):
            learn(x, y)
            state.commit()


@finds("global_step")
def global_step():
    global_step = 0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            lr = 0.1 * min(1.0, (global_step + 1) / 10)
            for group in optimizer.param_groups:
                group["lr"] = lr
            learn(x, y)
            global_step += 1
            state.commit()


def set_lr(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + step)


@finds("global_step")
def global_step_of_epoch():
    for epoch in state.epochs(EPOCHS):
        global_step = epoch * len(loader)
        for x, y in loader:
            set_lr(optimizer, global_step)
            learn(x, y)
            global_step += 1
            state.commit()


@finds("lr")
def carried_lr():
    lr = 0.1
    for epoch in state.epochs(EPOCHS):
        lr = lr * 0.9
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = lr
            learn(x, y)
            state.commit()


@finds("hidden")
def hidden():
    hidden = None
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            out, hidden = model(x, hidden)
            cross_entropy(out, y).backward()
            hidden = hidden.detach()
            optimizer.step()
            state.commit()


@finds("previous")
def spike():
    previous = None
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            if previous is not None and loss > 3 * previous:
                loss = loss * 0.1
            loss.backward()
            optimizer.step()
            previous = loss.item()
            state.commit()


@finds("bad", "best")
def early_stop():
    best, bad = float("inf"), 0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        value = evaluate()
        if value < best:
            best, bad = value, 0
            torch.save(model.state_dict(), "best.pt")
        else:
            bad += 1
            if bad > 3:
                break


@finds("total")
def plateau_by_mean():
    for epoch in state.epochs(EPOCHS):
        total = 0.0
        for x, y in loader:
            loss = learn(x, y)
            total += loss.item()
            state.commit()
        scheduler.step(total / len(loader))


@finds("count")
def mean_by_count_behind_the_commit():
    for epoch in state.epochs(EPOCHS):
        total, count = 0.0, 0
        for x, y in loader:
            loss = learn(x, y)
            total += loss.item()
            state.commit()
            count += 1
        print(total / count)


@finds("loss")
def loss_of_a_loop_that_is_left():
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            if state.step >= (epoch + 1) * 5:
                break
            loss = learn(x, y)
            state.commit()
        print(loss.item())


def cycle(dl):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for data in dl:
            yield data
        epoch += 1


@finds("epoch")
def cycle_with_epochs():
    batches = cycle(loader)
    while state.step < 30:
        x, y = next(batches)
        learn(x, y)
        state.commit()


class Wrapper:
    def __init__(self, loader):
        self.loader, self.calls = loader, 0

    def __iter__(self):
        self.loader.sampler.set_epoch(self.calls)
        self.calls += 1
        return iter(self.loader)


wrapped = Wrapper(loader)


@finds("self.calls")
def wrapper_calls():
    for epoch in state.epochs(EPOCHS):
        for x, y in wrapped:
            learn(x, y)
            state.commit()


@finds("epoch")
def range_epochs():
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            learn(x, y)
            state.commit()


@finds("step")
def max_steps():
    step = 0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
            step += 1
            if step == 40:
                return


@finds("group['lr']")
def decays_each_epoch():
    for epoch in state.epochs(EPOCHS):
        if epoch in (1, 2):
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        for x, y in loader:
            learn(x, y)
            state.commit()


def anneal(module):
    for one in module.modules():
        if hasattr(one, "rate"):
            one.rate = one.rate * 0.6


@finds("one.rate")
def anneals_each_epoch():
    for _ in state.epochs(EPOCHS):
        anneal(model)
        for x, y in loader:
            learn(x, y)
            state.commit()
