"""`MegatronPart`: the state of a Megatron training beside its chunks and torch optimizers, as a part of the state.

Rules:

1. It has the main parameters (copies of 32 bits of a model of 16), the loss scalers and the schedule. It also has the
   number of iterations that the rerun machine has started. Shards of a model of 32 bits are the model's own memory, and
   come with it.
2. An inner optimizer steps before its parameters are copied into the model and gathered by the others. If the step
   counts, both are done again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from taskd.adaptors.trainers.megatron import interrupted, replica_sets
from taskd.adaptors.trainers.megatron.followers import MegatronScaler, MegatronSchedule
from taskd.adaptors.training.parts.library_part import LibraryPart


class MegatronPart(LibraryPart):
    """The part of one rank.

    Args:
        chunks: of the model, each in Megatron's `DistributedDataParallel`.
        optimizers: Megatron's, of which each has one of torch's.
        scheduler: Megatron's, if there is one.
        configs: in which there may be timers.
    """

    no_rows = replica_sets.NO_ROWS
    set_anew = ("current_microbatch",)

    def __init__(
        self, chunks: Sequence[Any], optimizers: Sequence[Any], scheduler: Any, configs: Sequence[Any]
    ) -> None:
        self._chunks, self._optimizers, self._configs = chunks, optimizers, configs
        self._divided = any(replica_sets.dividing(optimizers))
        scalers = {id(one.grad_scaler): one.grad_scaler for one in optimizers if getattr(one, "grad_scaler", None)}
        self._scalers = list(map(MegatronScaler, scalers.values()))
        self._schedule = None if scheduler is None else MegatronSchedule(scheduler)
        self._stepped = False
        for one in () if scheduler is None else optimizers:
            one.optimizer.register_step_post_hook(self._stepper())
        self.coordinates = replica_sets.coordinates(chunks, optimizers)
        self.alone = replica_sets.alone(chunks, optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the main parameters themselves, and copies of the rest."""
        machine = interrupted.rerun_machine()
        return {
            "main": self._main(),
            "scalers": [scaler.state() for scaler in self._scalers],
            "counted": None if self._schedule is None else self._schedule.counted,
            "iteration": None if machine is None else machine.current_iteration,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another rank of the replica set."""
        with torch.no_grad():
            for own, given in zip(self._main(), state["main"], strict=True):
                if own.data_ptr() != given.data_ptr():
                    own.copy_(given)
        for scaler, known in zip(self._scalers, state["scalers"], strict=True):
            scaler.take(known)
        if self._schedule is not None and state["counted"] is not None:
            self._schedule.take(state["counted"])
        machine = interrupted.rerun_machine()
        if machine is not None and state["iteration"] is not None:
            machine.current_iteration = state["iteration"]

    def committed(self) -> None:
        """Record a committed step."""
        for scaler in self._scalers:
            scaler.settled()
        if self._schedule is not None:
            self._schedule.committed(stepped=self._stepped)
        self._stepped = False

    def settled(self) -> None:
        """Record the present values as those of the committed step."""
        for held in self._moving():
            held.settled()

    def drop_step(self) -> None:
        """Drop the interrupted step: its communication, timers and rerun."""
        interrupted.drop_communication(self._chunks)
        interrupted.stop_timers(self._configs)
        interrupted.begin_rerun_again()

    def put_back(self) -> None:
        """Go back to the committed values: the step is done again."""
        for held in self._moving():
            held.put_back()

    def lags(self) -> bool:
        """Return whether the schedule's increment for this step is unknown."""
        return self._schedule is not None and self._schedule.lags()

    def follow(self) -> None:
        """Update the model's parameters and the schedule after the optimizers: the step counts."""
        with torch.no_grad():
            for optimizer in self._optimizers:
                if hasattr(optimizer, "_copy_main_params_to_model_params"):
                    optimizer._copy_main_params_to_model_params()
        if self._schedule is not None:
            self._schedule.follow()

    def complete(self) -> None:
        """Gather the parameters of which each data-parallel rank has stepped a shard."""
        if self._divided:
            interrupted.gather_parameters(self._chunks)

    def _stepper(self) -> Callable[..., None]:
        """Return a function as the hook, so an optimizer that has it can still be copied."""

        def note(*_: Any) -> None:
            self._stepped = True

        return note

    def _moving(self) -> list[MegatronScaler | MegatronSchedule]:
        return [*self._scalers, *(() if self._schedule is None else (self._schedule,))]

    def _main(self) -> list[torch.Tensor]:
        """Return the tensors that the torch optimizers train and no chunk holds."""
        own = {p.untyped_storage().data_ptr() for chunk in self._chunks for p in chunk.parameters()}
        inner = [one.optimizer for one in self._optimizers]
        found = [p.detach() for optimizer in inner for group in optimizer.param_groups for p in group["params"]]
        return [tensor for tensor in found if tensor.untyped_storage().data_ptr() not in own]


class UnfitPart(LibraryPart):
    """Stand-in for the part if this taskd does not support the version, or a feature in use."""

    no_rows = replica_sets.NO_ROWS

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal
        self.remedy = "Load your own checkpoint at the start."
