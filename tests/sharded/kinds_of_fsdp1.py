"""FSDP1, in each of its strategies that gloo supports, as trainers use it."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FullySharded
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.sharded.kinds import KINDS, kind
from tests.sharded.kinds_of_models import STEPS, batch, loss_of, net

_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


def wrapped(strategy: ShardingStrategy, **options: Any) -> FullySharded:
    if strategy in _HYBRID:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    policy = ModuleWrapPolicy({torch.nn.Sequential})
    return FullySharded(
        net(), sharding_strategy=strategy, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options
    )


def train(model: FullySharded, *, parts: int = 1) -> list[object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found: list[object] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts - 1):
            with model.no_sync():
                rows, kinds = batch(10 * step + part, group=dist.group.WORLD)
                loss_of(model(rows), kinds).backward()
        rows, kinds = batch(10 * step + parts, group=dist.group.WORLD)
        loss = loss_of(model(rows), kinds)
        loss.backward()
        found += [loss, model.clip_grad_norm_(0.5)]
        optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [*found, *moments, *model.parameters()]


def strategy_kind(strategy: ShardingStrategy, *, flat: bool) -> None:
    name = f"fsdp1_{strategy.name.lower()}{'_flat' * flat}"
    KINDS[name] = lambda: train(wrapped(strategy, use_orig_params=not flat))


for _strategy in ShardingStrategy:
    for _flat in (False, True):
        strategy_kind(_strategy, flat=_flat)


@kind
def fsdp1_accumulated_and_mixed() -> object:
    mixed = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    return train(wrapped(ShardingStrategy.FULL_SHARD, mixed_precision=mixed, use_orig_params=True), parts=2)


@kind
def fsdp1_state_dicts() -> object:
    model = wrapped(ShardingStrategy.FULL_SHARD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows, kinds = batch(0, group=dist.group.WORLD)
    loss_of(model(rows), kinds).backward()
    optimizer.step()
    with FullySharded.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        whole = list(model.state_dict().values())
    with FullySharded.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        parts = [part.to_local() if hasattr(part, "to_local") else part for part in model.state_dict().values()]
    states = FullySharded.full_optim_state_dict(model, optimizer)
    return [whole, [repr(part) for part in parts], sorted(states.get("state", {}))]


@kind
def fsdp1_offloaded() -> object:
    from torch.distributed.fsdp import CPUOffload

    return train(wrapped(ShardingStrategy.FULL_SHARD, cpu_offload=CPUOffload(offload_params=True)))
