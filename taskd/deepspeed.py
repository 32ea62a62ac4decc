"""DeepSpeed under taskd: `import taskd.deepspeed`, and one state for an engine of `deepspeed.initialize`.

engine, optimizer, loader, scheduler = deepspeed.initialize(model=net, config=config, training_data=rows)
state = taskd.deepspeed.state(engine, loader=loader)

@taskd.resilient(state)
def train():
    for epoch in state.epochs(3):
        for x, y in loader:
            engine.backward(loss_fn(engine(x), y))
            engine.step()
            state.commit()  # counts where engine.step() has changed the weights

train()
"""

from typing import Any

from taskd.adaptors.groups.collectives import leave_alone
from taskd.adaptors.trainers.deepspeed.state import DeepSpeedState
from taskd.adaptors.trainers.deepspeed.state import state as _state

__all__ = ["DeepSpeedState", "state"]

leave_alone("deepspeed", through="deepspeed.comm")  # weights come with the state; the rest compares what is the same


def state(engine: Any, *, loader: Any = None, **parts: Any) -> DeepSpeedState:
    """The training state of an engine of `deepspeed.initialize`: weights, optimizer, schedule, loss scale, counters.

    With ZeRO 1 to 3 each rank copies its part to shared memory, as for any state that no other rank has: by default as
    often as that costs at most 2 % of the time; `backup_every=1` after each step.

    Args:
        engine: made before; a checkpoint is loaded into it before, too. `state.step` is its `global_steps`.
        loader: a data loader of torch's, or the one that `deepspeed.initialize(training_data=…)` has made. Iterated
            over in the training function it goes on behind the last committed step; its order and the random numbers
            are those that it has without taskd.
        parts: further arguments of `taskd.TrainState`: `seed`, `backup_every`, `replicated`, `data`. Model, optimizer
            and schedule come from the engine.

    An engine of a kind that is not known (pipelines, offloading, experts), or a DeepSpeed of another version, trains as
    it is, with one warning: at a fault all processes start anew.
    """
    return _state(engine, loader, **parts)
