"""A job of some shape that is dumped at a fault, or begins with another one's dump (`tests.sharded.dumping`).

DUMPING_SHAPE names the shape, DUMPING_DO the action: `train` until ranks are killed, `load` with taskd's own loading,
or `plain` with torch's alone. Rank 0 writes whole tensors, by the names of the whole model, to DUMPING_TENSORS.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import taskd
from taskd.adaptors.training.checkpoints.files import newest_first

LAST, WIDTH = 4, 5
SHAPE, DO = os.environ["DUMPING_SHAPE"], os.environ["DUMPING_DO"]
TENSORS = Path(os.environ["DUMPING_TENSORS"])
SHELF = Path(os.environ["TASKD_CHECKPOINT_DIR"])
Whole = dict[str, torch.Tensor]


class Block(nn.Module):
    """Two layers, of sizes that no number of ranks divides, and a buffer that counts."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 14), nn.Linear(14, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return rows + torch.tanh(self.norm(self.second(torch.tanh(self.first(rows)))))


class Net(nn.Module):
    """Two blocks, or those of one stage: their names are those of the whole model."""

    def __init__(self, blocks: tuple[int, ...] = (0, 1), first: int = 0) -> None:
        super().__init__()
        torch.manual_seed(7)
        made = [Block() for _ in range(2)]
        self.blocks = nn.ModuleDict({str(at - first): made[at] for at in blocks})

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            rows = block(rows)
        return rows


Work = Callable[[int], None]


def data(step: int, share: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + share))


def none() -> tuple[nn.Module, Work]:
    """Build the whole model on each rank."""
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    return net, lambda step: model(data(step, dist.get_rank())).square().sum().backward()


def sharded(*sizes: int, names: tuple[str, ...]) -> tuple[nn.Module, Work]:
    """Build it with FSDP2 or HSDP."""
    mesh, net = init_device_mesh("cpu", sizes, mesh_dim_names=names), Net()
    for block in net.blocks.values():
        fully_shard(block, mesh=mesh)
    model: Any = fully_shard(net, mesh=mesh)
    return net, lambda step: model(data(step, dist.get_rank())).square().sum().backward()


def tensor_parallel(sharded: bool = False) -> tuple[nn.Module, Work]:
    """Split the layers over two ranks. Over the other dimension, shard them or sum the gradients by hand."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    net = Net()
    ways = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    plan = {f"blocks.{at}.{layer}": way for at in (0, 1) for layer, way in ways.items()}
    parallelize_module(net, mesh["tp"], plan)
    if sharded:
        fully_shard(net, mesh=mesh["dp"])

    def work(step: int) -> None:
        net(data(step, mesh.get_local_rank("dp"))).square().sum().backward()
        if not sharded:
            sum_up(net, mesh.get_group("dp"))

    return net, work


def pipeline(alike: bool = False) -> tuple[nn.Module, Work]:
    """Put a block on each of two ranks. `alike`: both have the same name for theirs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    share, number = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    net = Net((number,), number if alike else 0)
    stage = PipelineStage(net, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda rows, _: rows.square().sum())

    def work(step: int) -> None:
        schedule.step(data(step, share)) if number == 0 else schedule.step(target=data(step, share), losses=[])
        sum_up(net, mesh.get_group("dp"))

    net.taskd_stage = stage  # type: ignore[assignment]  # it lives as long as the model
    return net, work


def sum_up(net: nn.Module, group: Any) -> None:
    for parameter in net.parameters():
        gradient: Any = parameter.grad
        dist.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient, group=group)
    dist.barrier()  # no rank steps before all have their gradients


SHAPES: dict[str, Callable[[], tuple[nn.Module, Work]]] = {
    "none": none,
    "hsdp": lambda: sharded(2, dist.get_world_size() // 2, names=("dp_replicate", "dp_shard")),
    "fsdp2": lambda: sharded(dist.get_world_size(), names=("dp_shard",)),
    "tp": tensor_parallel,
    "fsdp2-tp": lambda: tensor_parallel(sharded=True),
    "pp": pipeline,
    "zero": none,
    "zero-pairs": none,
    "pp-alike": lambda: pipeline(alike=True),
}


def whole(net: nn.Module, optimizer: torch.optim.Optimizer) -> Whole:
    """Return every tensor of the job. If a pipeline's stages use the same names, the second's have a number."""
    names: dict[Any, str] = {parameter: name for name, parameter in net.named_parameters()}
    found = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
    own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    for parameter, its in own.state.items():
        found |= {f"optimizer.state.{names[parameter]}.{key}": value for key, value in its.items()}
    mine = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in found.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: tensor.detach().clone() for name, tensor in mine.items()})
    together: Whole = {}
    for rank, its in reversed(list(enumerate(everyone))):
        together |= {f"{name}@{rank % 2}" if SHAPE == "pp-alike" and rank % 2 else name: t for name, t in its.items()}
    return together


def keep(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tensors = whole(net, optimizer)
    if dist.get_rank() == 0:
        torch.save(tensors, TENSORS)


def plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load as a script without taskd does."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model_state, optimizer_state = get_state_dict(net, optimizer)
    wanted: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(wanted, checkpoint_id=newest_first(SHELF)[0])
    set_state_dict(net, optimizer, model_state_dict=wanted["model"], optim_state_dict=wanted["optimizer"])


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    if not SHAPE.startswith("zero"):
        return torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    ranks = 2 if SHAPE == "zero-pairs" else dist.get_world_size()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // ranks, ranks), mesh_dim_names=("dp", "zero"))
    group = mesh.get_group("zero")
    return ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2, foreach=False)


def main() -> None:
    dist.init_process_group("gloo")
    net, work = SHAPES[SHAPE]()
    optimizer = make_optimizer(net)
    if DO == "plain":
        plain(net, optimizer)
        keep(net, optimizer)
        dist.destroy_process_group()
        return
    state = taskd.TrainState(model=net, optimizer=optimizer, seed=1, backup_every=0)
    if DO == "load":
        step = taskd.load_latest(state, SHELF)
        assert step == LAST, f"step {step} was loaded"
        keep(net, optimizer)

    @taskd.resilient(state)
    def train() -> None:
        while state.step < LAST + 3:
            if state.step == LAST and DO == "train":
                keep(net, optimizer)
                end()
            optimizer.zero_grad()
            work(state.step)
            optimizer.step()
            state.commit()

    train()
    dist.destroy_process_group()


def end() -> None:
    """Make the fault: kill some ranks, or raise the error of a broken connection on all.

    One rank kills all victims. A victim that died by itself would break the barrier of another, which would then live.
    """
    pids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    killed = [int(rank) for rank in os.environ["DUMPING_KILLED"].split(",") if rank]
    dist.barrier()
    if not killed:
        raise RuntimeError("Connection reset by peer")
    if dist.get_rank() == killed[-1]:
        for rank in killed:
            os.kill(pids[rank], signal.SIGKILL)


main()
