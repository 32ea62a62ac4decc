"""The parts of Lightning's trainer in the training state, and the check for hooks that use a batch at its end.

The trainer's other values (see `kept`) are three parts. One is equal on all ranks. One is a rank's own and changes in
each step. One is the start of its pass over the batches.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import torch

from taskd.adaptors.trainers.lightning.library import Library
from taskd.adaptors.training.positions.packed import PackedPosition
from taskd.errors import ConfigError


def parts_of(trainer: Any, library: Library) -> dict[str, Any]:
    """Return model, optimizers, schedulers and scaler by their names.

    Raises:
        ConfigError: the fit has something that a new process could not be given.
    """
    module, strategy = trainer.lightning_module, trainer.strategy
    hook = library.module("utilities.signature_utils").is_param_in_hook_signature
    if hook(module.training_step, "dataloader_iter", explicit=True):
        raise ConfigError(
            f"{type(module).__name__}.training_step takes dataloader_iter, and fetches batches that nobody can keep; "
            "let it take batch"
        )
    for callback in trainer.callbacks:
        _expect_recoverable(callback, module, library)
    optimizers = {f"optimizer_{number}": one for number, one in enumerate(strategy.optimizers)}
    if not optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in optimizers.values()):
        raise ConfigError(f"{type(module).__name__}.configure_optimizers gives no optimizer of torch's")
    schedulers = {f"scheduler_{number}": one.scheduler for number, one in enumerate(strategy.lr_scheduler_configs)}
    scaler = getattr(strategy.precision_plugin, "scaler", None)
    return {"model": module, **optimizers, **schedulers, "scaler": scaler}


def _expect_recoverable(callback: Any, module: torch.nn.Module, library: Library) -> None:
    name = type(callback).__name__
    if isinstance(callback, library.module("callbacks").BaseFinetuning):
        raise ConfigError(f"the callback {name} gives the optimizer other parameters in the course of the training")
    for attribute, value in vars(callback).items():
        if value is not module and isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            raise ConfigError(
                f"the callback {name} has a {type(value).__name__} of its own, {attribute}, which a new process could "
                "not be given"
            )


def uses_batch(trainer: Any, library: Library) -> bool:
    """Return whether a hook at a batch's end is not Lightning's own: such a hook may use the batch."""
    name = "on_train_batch_end"
    owners = [trainer.lightning_module, *trainer.callbacks]
    return any(not getattr(type(one), name).__module__.startswith(library.root) for one in owners)


_BETWEEN: Final = (
    "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward", "backward", "on_after_backward",
    "on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping",
)  # fmt: skip
"""Hooks that Lightning calls between the end of a training step and the end of its optimizers' step."""


def stands_till_commit(trainer: Any, library: Library) -> bool:
    """Return whether a rank's own values stay as they are from a training step to its optimizers' step.

    They do if none of the hooks in between, which may log, is other than Lightning's.
    """
    module = trainer.lightning_module
    hooks = (getattr(owner, name, None) for owner in (module, *trainer.callbacks) for name in _BETWEEN)
    others = (hook for hook in hooks if hook is not None and not (hook.__module__ or "").startswith(library.root))
    return module.automatic_optimization and next(others, None) is None


def self_kept(trainer: Any, library: Library) -> list[torch.nn.Module]:
    """Return the modules whose attributes are kept here: the user's own, and metrics objects."""
    module = trainer.lightning_module
    kind = library.module("trainer.connectors.logger_connector.result").Metric
    return [module, *(one for one in module.modules() if isinstance(one, kind))]


class CommonPart:
    """A part that is equal on all ranks: `tell` returns the values at the last commit."""

    def __init__(self, tell: Callable[[], dict[str, Any] | None]) -> None:
        self._tell = tell
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the values at the last commit."""
        told = self._tell()
        return {} if told is None else {"data": msgspec.msgpack.encode(told)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the values for the entry into the training function."""
        self.loaded = msgspec.msgpack.decode(state["data"]) if state else None


class OwnPart(PackedPosition):
    """The values that are this rank's own, and change."""

    def __init__(self, tell: Callable[[], bytes]) -> None:
        self._tell = tell
        self.loaded = b""

    def pack(self) -> bytes:
        """Return the present values."""
        return self._tell()

    def unpack(self, data: bytes) -> None:
        """Keep the values for the entry into the training function."""
        self.loaded = data


class Beginning(PackedPosition):
    """The start of this rank's pass over its batches: `find` returns the fetcher of them."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._number, self._packed = -1, b""
        self.loaded: list[Any] = []

    def pack(self) -> bytes:
        """Return the start of the present pass."""
        fetcher = self._find()
        if fetcher is None:
            return b""
        if fetcher.taskd.number != self._number:
            self._number, self._packed = fetcher.taskd.number, msgspec.msgpack.encode(fetcher.taskd_beginning())
        return self._packed

    def unpack(self, data: bytes) -> None:
        """Keep the start for the entry into the training function."""
        self.loaded = msgspec.msgpack.decode(data) if data else []
