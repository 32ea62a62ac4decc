"""Optimizers whose state is divided among ranks: torch's `ZeroRedundancyOptimizer`, and those of adapters.

Rules:

1. A rank has the state of its own inner optimizer, and the options of the groups that the script uses. Its `state_dict`
   is never called, because all ranks would have to take part.
2. Ranks of the same number in different groups have the same part. With one group of all ranks no two have the same.
3. Its step ends with broadcasts into the parameters. Broadcasts under way are waited for, until they fail, before
   anything else is written to the parameters.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from taskd.adaptors.groups.instances import imported
from taskd.adaptors.groups.settling import settle
from taskd.adaptors.training.sharding.own_state import is_divided, own_state
from taskd.errors import RestoreError

_LIMIT_S: Final = 5.0


def is_partitioned(part: Any) -> bool:
    """Return whether this is a `ZeroRedundancyOptimizer` with an inner optimizer (none with `overlap_with_ddp`)."""
    return is_zero(part) and isinstance(getattr(part, "optim", None), torch.optim.Optimizer)


def is_zero(part: Any) -> bool:
    """Return whether this is a `ZeroRedundancyOptimizer`."""
    kind = imported("torch.distributed.optim", "ZeroRedundancyOptimizer")
    return kind is not None and isinstance(part, kind)


def partitions(optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    """Return the optimizers of which other ranks have other parts."""
    return [one for one in optimizers if is_divided(one) or (is_partitioned(one) and one.world_size > 1)]  # type: ignore[attr-defined]


def share_of(part: Any) -> tuple[int, int]:
    """Return the number of this rank's part, and the number of parts."""
    own = own_state(part)
    return (own.rank, own.of) if own is not None else (part.rank, part.world_size)


def inner_of(part: Any) -> torch.optim.Optimizer:
    """Return the optimizer whose groups hold this rank's part."""
    found: torch.optim.Optimizer = part.optim if is_partitioned(part) else part
    return found


def whole(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Any]:
    """Yield each optimizer, and the inner one that holds its state, if there is one."""
    for optimizer in optimizers:
        yield optimizer
        if is_partitioned(optimizer):
            yield optimizer.optim  # type: ignore[attr-defined]


def state_of(part: Any) -> Any:
    """Return the `state_dict()` of a part of the training state, without a collective.

    For a partitioned optimizer it has the numbers and groups of all parameters, and the state of this rank's ones.
    """
    own = own_state(part)
    if own is not None:
        return own.state()
    if not is_partitioned(part):
        return part.state_dict()
    numbers = {parameter: number for number, parameter in _numbered(part)}
    groups = [{**group, "params": [numbers[parameter] for parameter in group["params"]]} for group in part.param_groups]
    state = {numbers[parameter]: its for parameter, its in part.optim.state.items()}
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def load(part: Any, state: Any) -> None:
    """Load a result of `state_of` into a part. It must come from a rank that has all that this rank needs."""
    told = own_state(part)
    if told is not None:
        told.load(state)
        return
    if not is_partitioned(part):
        part.load_state_dict(state)
        return
    own = part.optim.state_dict()
    inner = [parameter for group in part.optim.param_groups for parameter in group["params"]]
    numbers = {parameter: number for number, parameter in _numbered(part)}
    known = {at: state["state"][numbers[p]] for at, p in enumerate(inner) if numbers[p] in state["state"]}
    for groups in (part.param_groups, own["param_groups"]):
        for group, given in zip(groups, state["param_groups"], strict=True):
            group.update({key: value for key, value in given.items() if key != "params"})
    part.optim.load_state_dict({**own, "state": known})


def _numbered(zero: Any) -> Iterator[tuple[int, torch.Tensor]]:
    return enumerate(parameter for group in zero.param_groups for parameter in group["params"])


def drop_step(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Wait until nothing of an interrupted step can be written to the parameters any more.

    Raises:
        RestoreError: something may still be written.
    """
    if partitions(optimizers) and not settle(_LIMIT_S):
        raise RestoreError(
            f"a broadcast of parameters, of the step that was interrupted, has not ended in {_LIMIT_S:g} s; expected "
            "that it fails as its group is broken"
        )
