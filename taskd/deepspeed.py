"""Recovery in place for DeepSpeed: one training state for an engine of `deepspeed.initialize`.

    import taskd.deepspeed

    engine, optimizer, loader, scheduler = deepspeed.initialize(model=net, config=config, training_data=rows)
    state = taskd.deepspeed.state(engine, loader=loader)

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(3):
            for x, y in loader:
                engine.backward(loss_fn(engine(x), y))
                engine.step()
                state.commit()  # counts a step if engine.step() has changed the weights

    train()

See docs/trainers/deepspeed.md.
"""

from typing import Any

from taskd.adaptors.groups.collectives import leave_alone
from taskd.adaptors.trainers.deepspeed.state import DeepSpeedState
from taskd.adaptors.trainers.deepspeed.state import state as _state

__all__ = ["DeepSpeedState", "state"]

leave_alone("deepspeed", through="deepspeed.comm")  # weights come with the state; the rest compares equal values


def state(engine: Any, *, loader: Any = None, **parts: Any) -> DeepSpeedState:
    """Return the training state of an engine: weights, optimizer, schedule, loss scale, counters.

    With ZeRO 1 to 3 each rank copies its part to shared memory, as for any state that no other rank has. By default
    copies are made as often as they cost at most 2 % of the time. `backup_every=1` copies after each step.

    taskd does not support some kinds of engine (pipelines, offloading, experts), and some versions of DeepSpeed. Such
    an engine trains as it is, with one warning. At a fault all processes then start anew.

    Args:
        engine: an engine of `deepspeed.initialize`. Load a checkpoint into it before this call. `state.step` is the
            engine's `global_steps`.
        loader: a data loader of torch, or the one that `deepspeed.initialize(training_data=…)` has made. In the
            training function it continues after the last committed step. Its order and its random numbers are the
            same as without taskd.
        parts: further arguments of `taskd.TrainState`: `seed`, `backup_every`, `replicated`, `data`. Model, optimizer
            and schedule come from the engine.
    """
    return _state(engine, loader, **parts)
