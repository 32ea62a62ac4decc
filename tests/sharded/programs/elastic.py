"""A job on a mesh that goes on with whole rows of it: `elastic.py`, with ELASTIC_SHAPE set, two ranks a row.

It trains until the file `stop` exists, or for ELASTIC_STEPS. In each step it records the shares of this rank.
Numbers have 64 bits, so that sums in another order differ in the fifteenth place, and a wrong average in the first.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import taskd

FOLDER, SHAPE = Path(os.environ["ELASTIC_FOLDER"]), os.environ["ELASTIC_SHAPE"]
STEPS = int(os.environ.get("ELASTIC_STEPS", "0"))
WIDTH = 6


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*layers).double()


def data(step: int, share: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + share), dtype=torch.float64)


Work = Callable[[Any, int], None]


def hsdp() -> tuple[nn.Module, Work]:
    """Build HSDP whose root has parameters of its own. Each share has two parts, of which the last one reduces."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    net = network()
    fully_shard(net[0], mesh=mesh)
    model: Any = fully_shard(net, mesh=mesh)

    def work(state: Any, step: int) -> None:
        for share in state.shares():
            tell(step, share)
            for part, rows in enumerate(data(step, share.index).chunk(2)):
                model.set_requires_gradient_sync(part == 1)
                (model(rows).square().mean() / 2 * share.scale).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return net, work


def tp() -> tuple[nn.Module, Work]:
    """Build tensor parallel layers with data parallel by hand: a mean over the present ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    net = network()
    net[3] = nn.Identity()  # dropout: both ranks of a layer would drop other elements
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def work(state: Any, step: int) -> None:
        for share in state.shares():
            tell(step, share)
            (net(data(step, share.index)).square().mean() * share.scale).backward()
        mean_over(net, mesh["dp"].get_group())

    return net, work


def pp() -> tuple[nn.Module, Work]:
    """Put a stage on each rank of a row. A share goes through it in two chunks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    number = mesh.get_local_rank("pp")
    layers = [*network()]
    net: nn.Module = nn.ModuleDict({str(number): nn.Sequential(*(layers[:2] if number == 0 else layers[2:]))})
    scale = [1.0]
    stage = PipelineStage(net[str(number)], number, 2, torch.device("cpu"), group=mesh.get_group("pp"))  # type: ignore[index]
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda rows, _: rows.square().mean() / 2 * scale[0], scale_grads=False)

    def work(state: Any, step: int) -> None:
        for share in state.shares():
            tell(step, share)
            scale[0] = share.scale
            rows = data(step, share.index)
            schedule.step(rows) if number == 0 else schedule.step(target=rows, losses=[])
        mean_over(net, mesh["dp"].get_group())

    return net, work


def mean_over(net: nn.Module, group: Any) -> None:
    """Average the gradients over the present ranks."""
    for parameter in net.parameters():
        gradient: Any = parameter.grad
        mine = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        dist.all_reduce(mine, group=group)
        mine /= dist.get_world_size(group)
    dist.barrier()  # no rank steps before all have their gradients


def tell(step: int, share: Any) -> None:
    with (FOLDER / f"shares-{os.environ['RANK']}").open("a") as file:
        file.write(json.dumps([step, share.index, share.count, dist.get_world_size()]) + "\n")


def goes_on(step: int) -> bool:
    """Return whether to go on, the same on all ranks."""
    flag = torch.tensor([step < STEPS if STEPS else not (FOLDER / "stop").exists()])
    dist.broadcast(flag, 0)
    return bool(flag)


def main() -> None:
    dist.init_process_group("gloo")
    net, work = {"hsdp": hsdp, "tp": tp, "pp": pp}[SHAPE]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
    state = taskd.TrainState(model=net, optimizer=optimizer, seed=1)
    kept = [id(one) for one in (net, optimizer, *net.parameters())]

    @taskd.resilient(state)
    def train() -> None:
        while goes_on(state.step):
            optimizer.zero_grad()
            work(state, state.step)
            optimizer.step()
            state.commit()

    train()
    assert kept == [id(one) for one in (net, optimizer, *net.parameters())]
    whole = {name: getattr(one, "full_tensor", lambda one=one: one)() for name, one in net.state_dict().items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, whole)
    if dist.get_rank() == 0:
        whole = {name: tensor for its in everyone for name, tensor in its.items()}
        torch.save({"step": state.step, "model": whole}, FOLDER / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
