"""Recovery in place for training with Megatron-LM's core (`megatron.core`).

    import taskd, taskd.megatron

    state = taskd.megatron.state(model, optimizer, opt_param_scheduler)

    @taskd.resilient(state)
    def train():  # the usual loop; called again after a recovery
        for iteration in range(state.step, train_iters):
            train_step(...)
            state.commit()

docs/trainers/megatron.md lists which trainings are exact, and which were tested.
"""

from taskd.adaptors.trainers.megatron.training_state import state

__all__ = ["state"]
