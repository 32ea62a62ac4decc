# ruff: noqa: B007, B023, B905
"""Training functions that are mended: batch counts continue after a recovery, and names set in a loop are kept.

The tests read them and never call them. `tests/training/test_reading.py` compares.
"""

from itertools import islice

import torch
from torch.nn.functional import cross_entropy

from tests.training.shapes import EPOCHS, K, exact, learn, loader, model, optimizer, sampler, state


@exact
def accum_misaligned():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            loss = cross_entropy(model(x), y) / K
            loss.backward()
            if i % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                state.commit()


@exact
def accum_last_partial():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            loss = cross_entropy(model(x), y) / K
            loss.backward()
            if (i + 1) % K == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                state.commit()


@exact
def critic():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            cross_entropy(model(x), y).backward()
            if i % 5 == 0:
                optimizer.step()
            state.commit()


@exact
def break_after():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            if i >= 20:
                break
            learn(x, y)
            state.commit()


@exact
def a_number_of_batches():
    for epoch in state.epochs(EPOCHS):
        for x, y in islice(loader, 20):
            learn(x, y)
            state.commit()


def adjust(optimizer, epoch, at, total):
    lr = 0.1 * (epoch + at / total)
    for g in optimizer.param_groups:
        g["lr"] = lr


def warm_up(model, loader, optimizer, epoch):
    for i, (x, y) in enumerate(loader):
        adjust(optimizer, epoch, i, len(loader))
        learn(x, y)
        state.commit()


@exact
def warmup_in_function():
    for epoch in state.epochs(EPOCHS):
        warm_up(model, loader, optimizer, epoch)


@exact
def zip_range():
    for epoch in state.epochs(EPOCHS):
        for _, (x, y) in zip(range(20), loader):
            learn(x, y)
            state.commit()


@exact
def seed_by_i():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            torch.manual_seed(1000 * epoch + i)
            learn(x, y)
            state.commit()


@exact
def closure():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):

            def closure():
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y) * (1 + i)
                loss.backward()
                return loss

            optimizer.step(closure)
            state.commit()


@exact
def mean_by_count():
    for epoch in state.epochs(EPOCHS):
        total, count = 0.0, 0
        for x, y in loader:
            loss = learn(x, y)
            total += loss.item()
            count += 1
            state.commit()
        print(total / count)


@exact
def mean_of_list():
    for epoch in state.epochs(EPOCHS):
        losses = []
        for x, y in loader:
            loss = learn(x, y)
            losses.append(loss.item())
            state.commit()
        print(sum(losses) / len(losses))


def train_one_epoch(model, loader, optimizer, epoch):
    model.train()
    for i, (x, y) in enumerate(loader):
        loss = learn(x, y)
        if i % 10 == 0:
            print(epoch, i, loss.item())
        state.commit()
    return loss.item()


@exact
def function_per_epoch():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        last = train_one_epoch(model, loader, optimizer, epoch)
        print(last)
