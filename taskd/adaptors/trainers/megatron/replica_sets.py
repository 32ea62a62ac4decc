"""The ranks that hold the same part of a Megatron model and of its optimizer's state.

Rules:

1. A chunk's weights are cut by tensor and pipeline ranks, and are equal along data and context ranks. Experts have
   data-parallel ranks of their own.
2. The distributed optimizer cuts its state among the data-parallel ranks of one instance of it. With one instance no
   other rank has the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch.distributed as dist

NO_ROWS: Final = "Megatron's ranks and shards are numbered for all ranks of the job"


def coordinates(chunks: Sequence[Any], optimizers: Sequence[Any]) -> dict[str, int]:
    """Return this rank's place along each dimension that cuts something."""
    found: dict[str, int] = {}
    for chunk in chunks:
        for name, group in (("tp", chunk.tp_group), ("pp", _first(chunk.pp_group))):
            if group is not None and group.size() > 1:
                found[name] = group.rank()
        if chunk.expert_parallel_buffers:
            found["experts"] = min(dist.get_process_group_ranks(chunk.expt_dp_group))
    for number, optimizer in enumerate(dividing(optimizers)):
        found[f"shard{number or ''}"] = optimizer.data_parallel_group.rank()
    return found


def alone(chunks: Sequence[Any], optimizers: Sequence[Any]) -> str:
    """Return the state that no other rank has, in words; "" for none."""
    divided = [one for one in dividing(optimizers) if _instances(chunks) == 1]
    if divided:
        return (
            f"a distributed optimizer of Megatron's over {divided[0].data_parallel_group.size()} ranks, each of which "
            "keeps what no other rank has"
        )
    for chunk in chunks:
        if chunk.dp_cp_group.size() == 1:
            return "a Megatron model without data-parallel ranks, of which no other rank has this part"
        if chunk.expert_parallel_buffers and chunk.expt_dp_group.size() == 1:
            return "experts of a Megatron model that no other rank has"
    return ""


def dividing(optimizers: Sequence[Any]) -> Iterator[Any]:
    """Yield the optimizers that divide their state among ranks."""
    for optimizer in optimizers:
        group = getattr(optimizer, "data_parallel_group", None)
        if group is not None and group.size() > 1:
            yield optimizer


def _instances(chunks: Sequence[Any]) -> int:
    return min(int(chunk.ddp_config.num_distributed_optimizer_instances) for chunk in chunks)


def _first(group: Any) -> Any:
    return group[0] if isinstance(group, list) else group
