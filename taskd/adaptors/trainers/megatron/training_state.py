"""`state`: the `TrainState` of a training with Megatron's core."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from taskd.adaptors.seams.seam import Look, installed
from taskd.adaptors.trainers.library import misfit
from taskd.adaptors.trainers.megatron import limits
from taskd.adaptors.trainers.megatron.held import MegatronPart, UnfitPart
from taskd.adaptors.trainers.megatron.seams import PACKAGE, TABLE
from taskd.adaptors.trainers.megatron.tracker import TrackerStates, rng_tracker
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError


def state(
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any = None,
    *,
    data: Mapping[str, Any] | None = None,
    replicated: Mapping[str, Any] | None = None,
    **options: Any,
) -> TrainState:
    """Return the state of a rank's training, made from the results of Megatron's `setup_model_and_optimizer`.

    Args:
        model: the list of its chunks, or the only one, each in Megatron's `DistributedDataParallel`.
        optimizer: of `get_megatron_optimizer`.
        opt_param_scheduler: an `OptimizerParamScheduler`, if there is one.
        data: this rank's own places in its data, as for `TrainState`; the states of Megatron's random number tracker
            are added.
        replicated: further objects that are equal on all ranks of a replica set, as for `TrainState`.
        **options: all others that `TrainState` takes. With a distributed optimizer copies of the state are made, after
            every `backup_every` steps if that is given.

    Raises:
        ConfigError: there is no torch optimizer in `optimizer`, or a part is refused as by `TrainState`.
    """
    chunks = list(model) if isinstance(model, list | tuple | torch.nn.ModuleList) else [model]
    optimizers = [one for one in getattr(optimizer, "chained_optimizers", [optimizer]) if _inner(one) is not None]
    if not optimizers:
        raise ConfigError(
            f"taskd.megatron.state got a {type(optimizer).__name__} as optimizer, expected what get_megatron_optimizer "
            "returns, with a torch optimizer inside on every rank"
        )
    part = part_of(chunks, optimizers, opt_param_scheduler, chained=optimizer)
    # The modules in the wrappers: Megatron's wrapper has a list named `buffers`, where a module has a method.
    named: dict[str, Any] = {f"model{at or ''}": getattr(chunk, "module", chunk) for at, chunk in enumerate(chunks)}
    named |= {f"optimizer{number or ''}": _inner(one) for number, one in enumerate(optimizers)}
    own = dict(data or {})
    if isinstance(part, MegatronPart) and (tracker := rng_tracker()).get_states():
        own["megatron_rng"] = TrackerStates(tracker)
    return TrainState(data=own, replicated={**(replicated or {}), "megatron": part}, **named, **options)


def part_of(
    chunks: Sequence[Any], optimizers: Sequence[Any], scheduler: Any, look: Look = installed, *, chained: Any = None
) -> LibraryPart:
    """Return the part beside models and torch optimizers; `look` looks names up in the installed library.

    `chained` is the object that chains the optimizers.
    """
    holders = [*optimizers, *(() if chained is None else (chained,))]
    refusal = misfit(PACKAGE, TABLE, look) or limits.refusal(chunks, holders)
    if refusal:
        return UnfitPart(refusal)
    configs = [config for one in (*chunks, *optimizers) if (config := getattr(one, "config", None)) is not None]
    return MegatronPart(chunks, optimizers, scheduler, configs)


def _inner(optimizer: Any) -> torch.optim.Optimizer | None:
    found = getattr(optimizer, "optimizer", optimizer)
    return found if isinstance(found, torch.optim.Optimizer) else None
