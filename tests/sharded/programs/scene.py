"""A job of one kind of sharded model, under torchrun on four ranks: `scene.py`, with SCENE_KIND set.

It reports its moments to `tests.scripts.diary`, so that it can be killed there, and each rank's results at its end.
Results are its parts of the weights and of the optimizer's state, its buffers, and whether its first objects are still
there. It has no knowledge of taskd but the three lines that every script has.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import taskd
from tests.scripts import deadly, diary
from tests.sharded.programs import census, other_device
from tests.sharded.programs.damage import flip_a_weight, flip_bits, lose_copies
from tests.sharded.programs.middle import in_the_middle
from tests.sharded.programs.mutations import MUTATIONS

STEPS = int(os.environ.get("SCENE_STEPS", "20"))
STEP_S = float(os.environ.get("SCENE_STEP_S", "0"))
"""Time by which a step is longer, in seconds, as if a device worked."""
WIDTH, KINDS, PARTS = 16, 8, 2


class Block(nn.Module):
    """Two layers with dropout. A buffer counts its passes, and affects its output."""

    passes: torch.Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        moment("in the stage")
        grown = self.second(torch.tanh(self.first(rows)))
        return rows + self.dropout(self.norm(grown)) * (1 + self.passes / 1000)


def network(dropout: float = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(KINDS, WIDTH), Block(dropout), Block(dropout), nn.Linear(WIDTH, KINDS))


def batch(step: int, part: int, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + share)
    rows = torch.randint(KINDS, (6,), generator=generator)
    return rows, (rows * 3 + 1) % KINDS


Step = Callable[[int], torch.Tensor]
"""Does the forward and backward pass of a step, and returns its loss."""


def moment(name: str) -> None:
    """Record a moment of the present step, at which this rank may be killed."""
    diary.moment(name)
    match deadly.struck(now[0], name):
        case None:
            return
        case "!":
            raise RuntimeError("Connection reset by peer")
        case "%":
            flip_a_weight(live[0])
            return
        case "~":
            lose_copies()
        case "^":
            flip_bits()
    deadly.end()


def into_backward(_gradient: torch.Tensor) -> None:
    moment("into backward")


now = [-1]
"""Number of the present step."""
live: list[nn.Module] = []
"""The trained modules."""


def ddp() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build the whole model on each rank."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    model = network()
    wrapper = nn.parallel.DistributedDataParallel(model, device_mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number: int) -> torch.Tensor:
        rows, kinds = batch(number, 0, dist.get_rank())
        loss = cross_entropy(wrapper(rows), kinds)
        diary.saw(number, loss)
        loss.backward()
        return loss.detach()

    return model, optimizer, mesh, step


def hsdp() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Shard it over two ranks, and replicate that on two others."""
    return fully_sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard")))


def fsdp() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Shard it over all ranks."""
    return fully_sharded(init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",)))


def fully_sharded(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build it with mixed precision and accumulated parts. Embedding and head belong to the root group."""
    model = network()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in (model[1], model[2]):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number: int) -> torch.Tensor:
        total = torch.zeros(())
        for part in range(PARTS):
            root.set_requires_gradient_sync(part == PARTS - 1)
            rows, kinds = batch(number, part, dist.get_rank())
            loss = cross_entropy(root(rows), kinds) / PARTS
            loss.register_hook(into_backward)
            loss.backward()
            total += loss.detach()
            moment("between parts")
        diary.saw(number, total)
        nn.utils.clip_grad_norm_(root.parameters(), 0.5)
        return total

    return model, optimizer, mesh, step


def tp() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Split each block's layers over two ranks, with data parallel by hand over two such pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = network(dropout=0.0)
    plan = {
        f"{at}.{layer}": way()
        for at in (1, 2)
        for layer, way in (("first", ColwiseParallel), ("second", RowwiseParallel))
    }
    parallelize_module(model, mesh["tp"], plan)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    replicas = mesh.get_group("dp")

    def step(number: int) -> torch.Tensor:
        total = torch.zeros(())
        for part in range(PARTS):
            rows, kinds = batch(number, part, mesh.get_local_rank("dp"))
            loss = cross_entropy(model(rows), kinds) / PARTS
            loss.register_hook(into_backward)
            loss.backward()
            total += loss.detach()
            moment("between parts")
        diary.saw(number, total)
        for at, gradient in enumerate(gradients(model)):
            dist.all_reduce(gradient, group=replicas)
            if at == 3:
                moment("in the all-reduces")
        dist.barrier()  # no rank steps before all have their gradients: see docs/parallelism.md
        return total

    return model, optimizer, mesh, step


def gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        yield gradient.to_local() if hasattr(gradient, "to_local") else gradient


def pp() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build two stages of equal shapes and different weights, each on two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    share, number = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    torch.manual_seed(number)
    model = nn.Sequential(Block(0.1), Block(0.1))
    stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(step: int) -> torch.Tensor:
        rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + share))
        losses: list[torch.Tensor] = []
        schedule.step(rows) if number == 0 else schedule.step(target=rows.flip(1), losses=losses)
        loss = sum(losses, torch.zeros(())).detach()
        diary.saw(step, loss)
        moment("through the pipeline")
        for gradient in gradients(model):
            dist.all_reduce(gradient, group=mesh.get_group("dp"))
        dist.barrier()  # as above
        return loss

    return model, optimizer, mesh, step


def zero() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build it so that each rank has a part of the optimizer's state."""
    return partitioned(init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "zero")))


def zero_pairs() -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build two pairs, in which each rank has a part of the optimizer's state."""
    return partitioned(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "zero")))


def partitioned(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh, Step]:
    """Build ZeRO-1 under DDP, with accumulated parts."""
    model = network()
    wrapper = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=mesh.get_group("zero"), lr=1e-2
    )

    def step(number: int) -> torch.Tensor:
        total = torch.zeros(())
        for part in range(PARTS):
            rows, kinds = batch(number, part, dist.get_rank())
            with nullcontext() if part == PARTS - 1 else wrapper.no_sync():
                loss = cross_entropy(wrapper(rows), kinds) / PARTS
                loss.register_hook(into_backward)
                loss.backward()
            total += loss.detach()
            moment("between parts")
        diary.saw(number, total)
        return total

    return model, optimizer, mesh, step


def parts_of(value: Any) -> Any:
    """Return the value with this rank's part of each sharded tensor."""
    if isinstance(value, dict):
        return {key: parts_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [parts_of(one) for one in value]
    return value.to_local() if hasattr(value, "to_local") else value


def main() -> None:
    MUTATIONS.get(os.environ.get("SCENE_MUTATION", ""), lambda: None)()
    kind, *ways = os.environ["SCENE_KIND"].split()
    other_device.init() if "split" in ways else dist.init_process_group("gloo")
    diary.moment("setup")
    kinds = (ddp, fsdp, hsdp, tp, pp, zero, zero_pairs)
    model, optimizer, mesh, work = {one.__name__: one for one in kinds}[kind]()
    in_the_middle(moment)
    seed, every = int(os.environ["SCENE_SEED"]) or None, int(os.environ["SCENE_BACKUP_EVERY"])
    backup_every = every if every >= 0 else None
    verify_every = int(os.environ["SCENE_VERIFY_EVERY"])
    verify = "replicas" if verify_every else None
    state = taskd.TrainState(
        model=model,
        optimizer=optimizer,
        seed=seed,
        backup_every=backup_every,
        verify=verify,
        every=verify_every or None,
    )
    saves = int(os.environ["SCENE_SAVES"])
    if saves:
        state.after_commit(lambda _step: taskd.save(state, diary.FOLDER / "checkpoints"), every=saves)
    live.append(model)
    kept = [id(one) for one in (model, optimizer, mesh, dist.group.WORLD, *model.parameters())]
    diary.moment("setup done")

    @taskd.resilient(state)
    def train() -> None:
        for number in range(state.step, STEPS):
            now[0] = number
            moment("step")
            if STEP_S:
                time.sleep(STEP_S)
            optimizer.zero_grad()
            loss = work(number)
            optimizer.step()
            moment("between optimizer and commit")
            state.commit(loss)
            moment("committed")
            census.count(number)

    train()
    diary.moment("after")
    assert kept == [id(one) for one in (model, optimizer, mesh, dist.group.WORLD, *model.parameters())]
    own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    tensors = {"model": parts_of(model.state_dict()), "optimizer": parts_of(own.state_dict())}
    diary.finish(step=state.step, tensors=diary.fingerprint(tensors))
    diary.leave()


main()
