"""Training functions with a warning, or nearly, as scripts write them."""

import shutil

import torch

from taskd.adaptors.training.state import TrainState
from tests.training.shapes import evaluate, learn, state

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bare = TrainState(model=model, optimizer=optimizer)


def behind():
    for _ in state.epochs(3):
        for x, _ in state.loader:
            learn(x, x)
            state.commit()
            if state.step % 5 == 0:
                break


def before():
    for _ in state.epochs(3):
        for x, _ in state.loader:
            if state.step >= 5:
                break
            learn(x, x)
            state.commit()


def both():
    while state.step < 5:
        for x, _ in state.loader:
            learn(x, x)
            state.commit()
            if state.step >= 5:
                return


def behind_an_epoch():
    for _ in state.epochs(3):
        for x, _ in state.loader:
            learn(x, x)
            state.commit()
        if evaluate() < 0.1:
            break


def ends():
    try:
        for _ in range(state.step, 5):
            state.commit()
    except Exception as error:
        print(error)
        raise


def only_raises():
    try:
        for _ in range(state.step, 5):
            state.commit()
    except RuntimeError as error:
        raise ValueError from error


def goes_on():
    for _ in range(state.step, 5):
        try:
            state.commit()
        except Exception as error:  # noqa: BLE001, PERF203 - as scripts do
            print(error)


def another_kind():
    try:
        for _ in range(state.step, 5):
            state.commit()
    except KeyboardInterrupt:
        print("stopped by hand")
        raise


def cleans_up():
    try:
        for _ in range(state.step, 5):
            state.commit()
    finally:
        print("over")
        shutil.rmtree("cache")


def cleans_up_after_all():
    try:
        for _ in range(state.step, 5):
            state.commit()
    except BaseException:
        shutil.rmtree("cache")
        raise


def closes():
    log = open("log", "a")  # noqa: SIM115 - as scripts do
    try:
        for _ in range(state.step, 5):
            state.commit()
    finally:
        print("over", file=log)
        log.close()


def cleans_up_elsewhere():
    for _ in range(state.step, 5):
        state.commit()
    try:
        evaluate()
    finally:
        shutil.rmtree("cache")


def sets_back():
    for _ in range(state.step, 5):
        try:
            state.commit()
        finally:
            torch.set_grad_enabled(True)


def elsewhere():
    for _ in range(state.step, 5):
        state.commit()
    try:
        evaluate()
    except Exception:
        print("no evaluation")
        raise


def looks():
    for _ in state.epochs(3):
        x, _ = next(iter(state.loader))
        print(x)
        for x, _ in state.loader:
            learn(x, x)
            state.commit()


def looks_with_a_default():
    for _ in state.epochs(3):
        print(next(iter(state.loader), None))
        for x, _ in state.loader:
            learn(x, x)
            state.commit()


def goes_through_all_again():
    done, seen = bare.step, 0
    for epoch in range(3):
        for number in range(5):
            seen += 1
            if seen <= done:
                continue
            step_of(epoch * 5 + number)
            bare.commit()


def begins_anew():
    for epoch in range(3):
        for number in range(5):
            step_of(epoch * 5 + number)
            bare.commit()


def step_of(number):
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) * number).sum().backward()
    optimizer.step()
