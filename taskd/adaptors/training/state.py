"""`TrainState`: the parts of one rank's training, counted in committed steps, as a script uses it.

Rules:

1. Every name without an underscore is for the script, and documented. Methods for a recovery are in `StateRecovery`.
2. A part is equal on all ranks, or each rank's own. The script declares which, or the part's type shows it (see
   `kinds`).
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

    Each part is given by keyword, or by its name in one of two dicts. It is then an attribute of the state:

    - *Equal on all ranks*: models, optimizers, schedulers and gradient scalers, by keyword. A replaced rank gets them
      from a peer. Declare a part of another type (such as your own weight average): `replicated={"ema": ema}`.
    - *Each rank's own* place in its data: data loaders and samplers of torch, by keyword. A rank continues where it was
      itself. Declare a part of another type: `data={"stream": stream}`.

    A part needs `state_dict()` and `load_state_dict()`, except for a `DataLoader` and a `DistributedSampler`. A part
    that is None is left out.

    With `seed`, the global generators of python, numpy and torch are seeded anew for each step of each rank. The seed,
    the rank and the step determine their numbers. These are then exact on whatever node, and among however many ranks,
    a step is done. Without `seed`, each rank's own generator states are restored, as far as they are known
    (docs/exactness.md).

    A `DataLoader` that is a part of the state keeps its exact place. After a recovery the training function makes a new
    iterator of it, which continues after the batch of the last committed step. Its order and its workers use seeds of
    the loader's own, and the global random numbers stay as they were.

    A state that no other rank holds (such as FSDP2 over all ranks) is copied from time to time to its node's shared
    memory. If there are several nodes, a second copy goes to another node. At a fault all ranks go back to the newest
    copies, and `step` with them. `backup_every` sets the number of steps from copy to copy; 0 turns copies off. A
    greater number also copies a state of which other ranks have replicas. By default copies are made as often as
    possible at a cost of at most 2 % of the time.

    With `verify="replicas"` each rank digests its part of the parameters and of the optimizer's state after every
    `every` steps (100 if not given). taskd compares the ranks that hold the same part. A rank whose memory has silently
    changed is reported, and replaced if the job requests it (`TASKD_CORRUPTION_RECOVERY`).

    `replica_set` names the ranks that hold the same part of the state. It is needed where sharded tensors do not show
    this (the stages of a pipeline built by hand). Ranks with the same name must hold the same part; digests prove it.

    What a script uses: `step`, `commit`, `after_commit`, `epoch`, `epochs`, `shares`, and its parts.

    Raises:
        ConfigError: a part's type does not show its kind or contradicts the declared kind. A part cannot be saved and
            loaded. A name is given twice, or the state itself uses it. `backup_every` or `every` is no number of steps.
            `verify` or `replica_set` is no valid value.
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
        """Count this step as done and record RNG and data position. Call it last in each step.

        With the step's `loss`, a number or a tensor of one element, taskd reports the first loss that is NaN or
        infinite; training continues. A tensor on an accelerator is checked one commit later, or when the device has
        computed it. No step waits for it.
        """
        self._recovery.commit_step(loss)

    def after_commit(self, work: Callable[[int], object], *, every: int = 1) -> None:
        """Run `work(step)` after every `every` commits, on all ranks: an evaluation, a checkpoint.

        It runs inside `commit`. If a rank dies in it, or before the next commit, all ranks run it again after the
        recovery. It must do no harm when it runs twice. Call this before training.

        Raises:
            ConfigError: `work` is no function, or `every` is no integer of at least 1.
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
        """Return the numbers of the remaining epochs of `total`, for the outer loop of the training function.

        for epoch in state.epochs(10):
            sampler.set_epoch(epoch)
            for batch in loader:  # a part of the state: continues after the last committed step
                ...
                state.commit()
            ...  # done again after a recovery, if the next epoch has not committed a step
        """
        recovery = self._recovery
        return recovery.parts.epochs.up_to(total, recovery.begin_epochs)

    def shares(self) -> Iterable[Share]:
        """Return the shares of the global batch that this rank computes in this step.

        While all ranks are there, this is one share of scale 1; otherwise there are more. The batch is a function of
        `step`, `index` and `count`:

            optimizer.zero_grad()
            for share in state.shares():
                loss = loss_function(model(batch(state.step, share.index, share.count)))
                (loss * share.scale).backward()
            optimizer.step()
            state.commit()

        DDP averages the gradients once, in the last share. A script that accumulates gradients over micro-batches does
        that within the share, as without shares: all micro-batches but the last run within `model.no_sync()`.

        With a seed, a share's random numbers are the same on whichever rank computes it.

        Raises:
            ConfigError: raised by the iteration, with fewer ranks. The script has switched on communication by hand
                (`require_backward_grad_sync`) in a share that is not the last.
        """
        recovery = self._recovery
        return recovery.shares.of_step(recovery.step)
