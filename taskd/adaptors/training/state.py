"""`TrainState`: what makes up one rank's training, counted in committed steps. This is what a script sees of it.

Rules:

1. Every name without an underscore is for the script, and documented. What a recovery calls is `StateRecovery`'s.
2. Which parts are equal on all ranks, and which are each rank's own, is said or known by their type (see `kinds`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from taskd.adaptors.training.data.shares import Share
from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.seeds import Seeds
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.replicas import Replicas
from taskd.adaptors.training.trust.statements import stated_set, verify_every
from taskd.errors import ConfigError


class TrainState:
    """The objects that one rank trains with, and the count of its committed steps.

    Each part is given by keyword, or in one of two dicts by its name, and is then an attribute:

    - *Equal on all ranks*: models, optimizers, schedulers and gradient scalers, by keyword. A replaced rank gets them
      from a peer. Of any other type (an average of the weights of your own), say so: `replicated={"ema": ema}`.
    - *Each rank's own* place in its data: data loaders and samplers of torch, by keyword. A rank goes on where it was
      itself. Of any other type, say so: `data={"stream": stream}`.

    A part has `state_dict()` and `load_state_dict()`; a `DataLoader` and a `DistributedSampler` need neither. One that
    is None is left out.

    With `seed`, python's, numpy's and torch's global generators are seeded anew for each step of each rank, from the
    seed, the rank and the step: what they draw is then exact on whatever node, and among however many ranks, a step is
    done. Without it each rank's own states are put back, as far as they are known (docs/exactness.md).

    A `DataLoader` that is a part of the state keeps its exact place: the training function makes a new iterator of it
    after a recovery, and that goes on behind the batch of the last committed step. What its order and its workers draw
    comes from seeds of its own, and the global random numbers are left as they were.

    A state that no other rank has (FSDP2 over all ranks, say) is copied now and then to the shared memory of its node
    and, if there are several nodes, of another: at a fault all ranks go back to the newest copies, and `step` with
    them. `backup_every` says after how many steps a copy is made, 0 that none is, and N copies a state too of which
    other ranks have replicas. By default copies are made as often as they cost at most 2 % of the time.

    With `verify="replicas"` each rank digests its part of the parameters and of the optimizer's state after every
    `every` steps (100 if not given), and taskd compares the ranks that hold the same: one whose memory has silently
    changed is named, and is replaced if the job wants it (`TASKD_CORRUPTION_RECOVERY`).

    `replica_set` names the ranks that hold the same part of the state, where sharded tensors do not tell it (the stages
    of a pipeline built by hand). Ranks with the same name must hold the same: digests prove it.

    What a script uses: `step`, `commit`, `after_commit`, `epoch`, `epochs`, `shares`, and its parts.

    Raises:
        ConfigError: a part has a type that does not tell what it is, or another than was said of it; cannot be saved
            and loaded; has a name that is given twice, or that the state itself uses; `backup_every` or
            `every` is no number of steps, or `verify` or `replica_set` none that is known.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        backup_every: int | None = None,
        verify: str | None = None,
        every: int | None = None,
        replica_set: str | None = None,
        data: Mapping[str, Any] | None = None,
        replicated: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        sorted_parts = sort(parts, data, replicated, taken=(*dir(type(self)), "_recovery"))
        seeds = None if seed is None else Seeds(seed)
        if backup_every is not None and (not isinstance(backup_every, int) or backup_every < 0):
            raise ConfigError(
                f"backup_every is {backup_every!r}, expected a number of steps from 0 (no copies) on, or None"
            )
        kept = Parts(sorted_parts)
        replicas = Replicas(kept, stated_set(replica_set), verify_every(verify, every))
        self._recovery = StateRecovery(kept, seeds, self.commit, backup_every, replicas)

    def __getattr__(self, name: str) -> Any:
        recovery = self.__dict__.get("_recovery")
        parts = {} if recovery is None else recovery.parts.all
        if name in parts:
            return parts[name]
        raise AttributeError(f"TrainState has no part {name!r}; it has {', '.join(parts) or 'none'}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._recovery.parts.all]

    @property
    def step(self) -> int:
        """Committed steps. Set it once after loading a checkpoint of your own, before training."""
        return self._recovery.step

    @step.setter
    def step(self, step: int) -> None:
        self._recovery.step = step

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """Count this step as done and record RNG and data position. To be called last in each step.

        With the step's `loss`, a number or a tensor of one element, taskd reports the first that is NaN or infinite;
        training goes on. A tensor on an accelerator is looked at one commit later, or when the device has come so far:
        no step waits for it.
        """
        self._recovery.commit_step(loss)

    def after_commit(self, work: Callable[[int], object], *, every: int = 1) -> None:
        """Have `work(step)` done after every so many commits, on all ranks: an evaluation, a checkpoint.

        It is done inside `commit`. If a rank dies in it, or before the next commit, all ranks do it again after the
        recovery, so it is to be such that doing it twice does no harm. To be called before training.

        Raises:
            ConfigError: `work` is no function, or `every` no number from 1 on.
        """
        self._recovery.after_commit(work, every)

    @property
    def epoch(self) -> int:
        """The epoch of `epochs`. Set it once after loading a checkpoint of your own, before training."""
        return self._recovery.parts.epochs.now

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._recovery.parts.epochs.start_at(epoch)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs that are left of `total`, for the outer loop of the training function.

        for epoch in state.epochs(10):
            sampler.set_epoch(epoch)
            for batch in loader:  # a part of the state: goes on behind the last committed step
                ...
                state.commit()
            ...  # done again after a recovery, if the next epoch has not committed a step
        """
        recovery = self._recovery
        return recovery.parts.epochs.up_to(total, recovery.begin_epochs)

    def shares(self) -> Iterable[Share]:
        """The shares of the global batch that this rank works at in this step.

        One, of scale 1, while all ranks are there; else more. The batch is a function of `step`, `index` and `count`:

            optimizer.zero_grad()
            for share in state.shares():
                loss = loss_function(model(batch(state.step, share.index, share.count)))
                (loss * share.scale).backward()
            optimizer.step()
            state.commit()

        DDP averages the gradients once, in the last share. A script that adds up the gradients of several micro-batches
        does that within the share, as it does without shares: all but the last within `model.no_sync()`.

        With a seed, a share's random numbers are the same on whichever rank it is worked at.

        Raises:
            ConfigError: while they are gone through, with fewer ranks: the script has switched on by hand the
                communication (`require_backward_grad_sync`) of a share that is not the last.
        """
        recovery = self._recovery
        return recovery.shares.of_step(recovery.step)
