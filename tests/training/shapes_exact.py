# ruff: noqa: B007, SIM113, UP028
"""Training functions, as people write them, that are exact after a recovery and have no findings.

The tests read them and never call them. `tests/training/test_reading.py` compares.
"""

import time
from contextlib import nullcontext
from itertools import islice

import torch
from torch.nn.functional import cross_entropy

from tests.training.shapes import (
    EPOCHS,
    K,
    bar_of,
    evaluate,
    exact,
    learn,
    loader,
    model,
    optimizer,
    sampler,
    scheduler,
    state,
    writer,
)


@exact
def accum_aligned():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            with model.no_sync() if (i + 1) % K else nullcontext():
                loss = cross_entropy(model(x), y) / K
                loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                state.commit()


@exact
def accum_by_hand():
    n = 0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            loss = cross_entropy(model(x), y) / K
            loss.backward()
            n += 1
            if n % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                state.commit()


@exact
def accum_by_hand_reset():
    n = 0
    total = 0.0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            total = total + cross_entropy(model(x), y)
            n += 1
            if n == K:
                total.backward()
                optimizer.step()
                optimizer.zero_grad()
                n = 0
                total = 0.0
                state.commit()


@exact
def accum_continue():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            (cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 != 0:
                continue
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            state.commit()


@exact
def print_only():
    step = 0
    running = 0.0
    start = time.time()
    for epoch in state.epochs(EPOCHS):
        bar = bar_of(loader)
        total, n = 0.0, 0
        for i, (x, y) in enumerate(bar):
            loss = learn(x, y)
            scheduler.step()
            step += 1
            running = 0.9 * running + 0.1 * loss.item()
            total += loss.item()
            n += len(x)
            if i % 10 == 0 and i > 0:
                print(f"{epoch} {i} {running:.3f} {time.time() - start:.1f}")
                start = time.time()
                bar.set_postfix(loss=running)
                if writer is not None:
                    writer.add_scalar("loss", running, epoch * len(loader) + i)
            if step % 100 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"ckpt-{step}.pt")
            state.commit()
        print(total / max(n, 1), total / len(loader))


@exact
def islice_to_step():
    for epoch in state.epochs(EPOCHS):
        for x, y in islice(loader, 20 - state.step):
            learn(x, y)
            state.commit()


@exact
def start():
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader, start=state.step % len(loader)):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch * len(loader) + i)
            learn(x, y)
            state.commit()


@exact
def global_step_from_state():
    global_step = state.step
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            lr = 0.1 * min(1.0, (global_step + 1) / 10)
            for group in optimizer.param_groups:
                group["lr"] = lr
            learn(x, y)
            global_step += 1
            state.commit()


@exact
def epoch_lr():
    for epoch in state.epochs(EPOCHS):
        lr = 0.1 * 0.9**epoch
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = lr
            learn(x, y)
            state.commit()


@exact
def ahead_behind_commit():
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        x, y = batch
        learn(x, y)
        state.commit()
        batch = next(batches, None)


@exact
def next_with_except():
    batches = iter(loader)
    while state.step < 20:
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        learn(x, y)
        state.commit()


@exact
def best_for_save_only():
    best = float("inf")
    history = []
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        value = evaluate()
        history.append(value)
        if value < best:
            best = value
            torch.save(model.state_dict(), "best.pt")
        print(history[-1], best)


@exact
def plateau_by_evaluation():
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            learn(x, y)
            state.commit()
        scheduler.step(evaluate())


@exact
def guarded_mean():
    for epoch in state.epochs(EPOCHS):
        losses = []
        for x, y in loader:
            loss = learn(x, y)
            losses.append(loss.item())
            state.commit()
        if losses:
            print(sum(losses) / len(losses), loss.item())


@exact
def behind_range():
    for epoch in range(state.step // len(loader), EPOCHS):
        for x, y in loader:
            loss = learn(x, y)
            state.commit()
        print(loss.item())


class Trainer:
    def __init__(self):
        self.seen = 0

    def step(self, x, y):
        loss = learn(x, y)
        state.commit()
        return loss

    def step_method(self):
        for epoch in state.epochs(EPOCHS):
            for i, (x, y) in enumerate(loader):
                loss = self.step(x, y)
                if i % 10 == 0:
                    print(loss.item())


exact(Trainer().step_method)


def cycle(dl):
    while True:
        for data in dl:
            yield data


@exact
def for_ever():
    batches = cycle(loader)
    while state.step < 30:
        x, y = next(batches)
        learn(x, y)
        state.commit()


def log_every(iterable, freq):
    i = 0
    start = time.time()
    for obj in iterable:
        yield obj
        if i % freq == 0:
            print(i, (time.time() - start) * (len(iterable) - i))
        i += 1


@exact
def with_a_logger():
    for epoch in state.epochs(EPOCHS):
        for x, y in log_every(loader, 10):
            learn(x, y)
            state.commit()


@exact
def done_flag():
    done = False
    while not done:
        for x, y in loader:
            learn(x, y)
            state.commit()
            if state.step >= 30:
                done = True
                break


@exact
def range_epochs_skipped():
    for epoch in range(EPOCHS):
        if epoch < state.step // len(loader):
            continue
        sampler.set_epoch(epoch)
        for x, y in loader:
            learn(x, y)
            state.commit()


@exact
def range_bounded():
    for _ in range(10**6):
        for x, y in loader:
            if state.step >= 30:
                return
            learn(x, y)
            state.commit()


@exact
def lazy():
    mask = None
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            if mask is None:
                mask = torch.tril(torch.ones(4, 4))
            optimizer.zero_grad()
            cross_entropy(model(x @ mask), y).backward()
            optimizer.step()
            state.commit()


@exact
def epoch_commit():
    for epoch in state.epochs(EPOCHS):
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = cross_entropy(model(x), y) * (i + 1)
            total = total + loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        state.commit()


@exact
def evaluate_every():
    best = 10.0
    for epoch in state.epochs(EPOCHS):
        for i, (x, y) in enumerate(loader):
            learn(x, y)
            state.commit()
            if i % 100 == 99:
                value = evaluate()
                best = min(best, value)
                print(best)


@exact
def steps_range():
    losses = []
    for step in range(state.step, 30):
        x, y = torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)
        loss = learn(x, y)
        state.commit(loss)
        losses.append(loss.item())
    print(loss, losses)


@exact
def time_limit():
    start = time.time()
    spent = 0.0
    for epoch in state.epochs(EPOCHS):
        for x, y in loader:
            t = time.time()
            learn(x, y)
            spent += time.time() - t
            state.commit()
            if time.time() - start > 3600:
                return


@exact
def rate_of_the_epoch():
    for epoch in state.epochs(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5**epoch
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] *= 0.999
            learn(x, y)
            state.commit()
