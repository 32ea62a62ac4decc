"""Training functions that fetch a batch ahead of its step, as people write them, each with its findings.

The tests read them and never call them. `tests/training/test_reading.py` compares.
"""

from tests.training.shapes import finds, learn, loader, optimizer, state


@finds("batch")
def ahead():
    batches = iter(loader)
    batch = next(batches)
    while state.step < 20:
        x, y = batch
        learn(x, y)
        batch = next(batches)
        state.commit()


@finds("nxt")
def ahead_nxt():
    batches = iter(loader)
    batch = next(batches)
    while state.step < 20:
        nxt = next(batches, None)
        x, y = batch
        learn(x, y)
        state.commit()
        batch = nxt


@finds("following")
def ahead_in_turn():
    batches = iter(loader)
    ready = next(batches)
    while state.step < 20:
        following = next(batches)
        learn(*ready)
        state.commit()
        ready = following


@finds("following")
def ahead_in_a_branch():
    batches = iter(loader)
    ready = next(batches)
    while state.step < 20:
        following = next(batches)
        learn(*ready)
        state.commit()
        if state.step % 2:
            ready = following
        else:
            ready = None
            if following is not None:
                ready = following


@finds("batch")
def ahead_after_none():
    waits = None
    for batch in loader:
        if waits is not None:
            learn(*waits)
            state.commit()
        waits = batch


@finds("nxt", "best")
def best_of_a_batch_ahead():
    batches = iter(loader)
    batch = next(batches)
    best = 1e9
    while state.step < 20:
        nxt = next(batches, None)
        loss = learn(*batch)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 if loss < best else 0.01
        best = min(best, loss.item())
        state.commit()
        batch = nxt
