"""DeepSpeed under taskd: `import taskd.deepspeed`, and one state for an engine of `deepspeed.initialize`.

engine, optimizer, loader, scheduler = deepspeed.initialize(model=net, config=config)
state = taskd.deepspeed.state(engine)

@taskd.resilient(state)
def train():
    for step in range(state.step, steps):
        for x, y in micro_batches(step):
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


def state(engine: Any, **parts: Any) -> DeepSpeedState:
    """The training state of an engine of `deepspeed.initialize`: weights, optimizer, schedule, loss scale, counters.

    With ZeRO 1 to 3 each rank copies its part to shared memory, as for any state that no other rank has: by default as
    often as that costs at most 2 % of the time; `backup_every=1` after each step.

    Args:
        engine: made before; a checkpoint is loaded into it before, too. `state.step` is its `global_steps`.
        parts: further arguments of `taskd.TrainState`: data loaders (`loader=`), `seed`, `backup_every`, `replicated`,
            `data`. Model, optimizer and schedule come from the engine.

    An engine of a kind that is not known (pipelines, offloading, experts), or a DeepSpeed of another version, trains as
    it is, with one warning: at a fault all processes start anew.
    """
    return _state(engine, **parts)
