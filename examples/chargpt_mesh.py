"""Train the character GPT of `chargpt_ddp.py`, sharded over a mesh: HSDP, FSDP2, tensor parallel or a pipeline.

    torchrun --nproc-per-node 4 examples/chargpt_mesh.py --mesh dp_replicate=2,dp_shard=2
    torchrun --nproc-per-node 2 examples/chargpt_mesh.py --mesh dp_shard=2
    torchrun --nproc-per-node 4 examples/chargpt_mesh.py --mesh dp=2,tp=2
    torchrun --nproc-per-node 4 examples/chargpt_mesh.py --mesh dp=2,pp=2

A replaced rank gets its shard from a rank that holds the same one. With `dp_shard=2` alone no other rank holds it, so
all ranks go back a few steps, to copies. The file also runs under plain torchrun, unchanged.

With `tp` the dropout is off, because its masks would have to be equal on the ranks that share a layer.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chargpt_ddp import BATCH_SIZE, LAYERS, CharGPT, Windows, load_text  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd

LARGEST_NORM = 1.0
CHUNKS = 4
"""Number of parts into which a pipeline splits a batch."""
Pass = Callable[[Tensor, bool], Tensor]
"""Forward and backward pass of one micro-batch of windows. The second argument: whether it is the last of its step.

It returns the loss, or zero on a pipeline stage that does not compute it.
"""


def loss_of(scores: Tensor, following: Tensor) -> Tensor:
    """Return the mean loss over all characters."""
    return cross_entropy(scores.flatten(0, 1), following.flatten())


class FirstStage(nn.Module):
    """First pipeline stage: takes characters and applies the first half of the blocks."""

    def __init__(self, network: CharGPT) -> None:
        super().__init__()
        self.characters, self.places = network.characters, network.places
        self.blocks = network.blocks[: LAYERS // 2]

    def forward(self, text: Tensor) -> Tensor:
        return self.blocks(self.characters(text) + self.places(torch.arange(text.shape[1])))


class LastStage(nn.Module):
    """Last pipeline stage: applies the other half of the blocks and returns scores of the next character."""

    def __init__(self, network: CharGPT) -> None:
        super().__init__()
        self.blocks, self.head = network.blocks[LAYERS // 2 :], network.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def fully_sharded(network: CharGPT, mesh: DeviceMesh, mixed: bool) -> tuple[nn.Module, Pass]:
    """Shard the network with FSDP2 over `dp_shard`, and replicate it over `dp_replicate` if the mesh has it."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if mixed else MixedPrecisionPolicy()
    for block in network.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    model: Any = fully_shard(network, mesh=mesh, mp_policy=policy)

    def once(windows: Tensor, last: bool) -> Tensor:
        model.set_requires_gradient_sync(last)
        loss = loss_of(model(windows[:, :-1]).float(), windows[:, 1:])
        loss.backward()
        return loss.detach()

    return model, once


def tensor_parallel(network: CharGPT, mesh: DeviceMesh, mixed: bool) -> tuple[nn.Module, Pass]:
    """Split the feed-forward layers over `tp`."""
    for block in network.blocks:
        parallelize_module(
            block, mesh["tp"], {"feed_forward.1": ColwiseParallel(), "feed_forward.3": RowwiseParallel()}
        )
        block.feed_forward[4].p = 0.0

    def once(windows: Tensor, _last: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            scores = network(windows[:, :-1])
        loss = loss_of(scores.float(), windows[:, 1:])
        loss.backward()
        return loss.detach()

    return network, once


def pipeline(network: CharGPT, mesh: DeviceMesh, mixed: bool) -> tuple[nn.Module, Pass]:
    """Split the network into two stages over `pp`."""
    number = mesh.get_local_rank("pp")
    part = LastStage(network) if number else FirstStage(network)
    stage = PipelineStage(part, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, CHUNKS, loss_fn=loss_of)

    def once(windows: Tensor, _last: bool) -> Tensor:
        losses: list[Tensor] = []
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            if number:
                schedule.step(target=windows[:, 1:], losses=losses)
            else:
                schedule.step(windows[:, :-1])
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    return part, once


def average(parameters: Iterable[Tensor], mesh: DeviceMesh) -> None:
    """Average the gradients over `dp`, where no wrapper does it."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        dist.all_reduce(local, group=mesh.get_group("dp"))
        local /= mesh["dp"].size()


def clip(parameters: Iterable[Tensor]) -> None:
    """Scale the gradients of this rank's stage down to a total norm of `LARGEST_NORM` at most."""
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    squares = [float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm) ** 2 for norm in norms]
    scale = min(1.0, LARGEST_NORM / (math.sqrt(sum(squares)) + 1e-6))
    for gradient in gradients:
        gradient.mul_(scale)


MESHES = (("dp_shard",), ("dp_replicate", "dp_shard"), ("dp", "tp"), ("dp", "pp"))


def sizes_of(text: str) -> dict[str, int]:
    """Parse `dp=2,tp=2` into sizes by name. Raise `ArgumentTypeError`, which argparse reports, for any other mesh."""
    try:
        sizes = {name: int(size) for name, size in (dimension.split("=") for dimension in text.split(","))}
    except ValueError:
        sizes = {}
    if tuple(sizes) not in MESHES:
        meshes = "; ".join(",".join(f"{name}=N" for name in names) for names in MESHES)
        raise argparse.ArgumentTypeError(f"found {text!r}, expected one of: {meshes}")
    return sizes


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    meshes = "dp_shard, with dp_replicate or without; or dp with tp or pp"
    parser.add_argument("--mesh", required=True, type=sizes_of, metavar="NAME=SIZE,…", help=meshes)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default 300)")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step (default 2)")
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16")
    parser.add_argument("--backup-every", type=int, metavar="N", help="steps between copies (default: taskd's choice)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where rank 0 writes the losses")
    return parser.parse_args()


def main() -> None:
    """Train as one rank."""
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    names = tuple(args.mesh)
    mesh = init_device_mesh("cpu", tuple(args.mesh.values()), mesh_dim_names=names)
    share = mesh.get_local_rank("dp") if "dp" in names else dist.get_rank()

    torch.manual_seed(0)
    shard = tensor_parallel if "tp" in names else pipeline if "pp" in names else fully_sharded
    model, once = shard(CharGPT(), mesh, args.mixed_precision)
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, foreach="tp" not in names)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    loader = StatefulDataLoader(Windows(load_text(), share), batch_size=BATCH_SIZE)

    state = taskd.TrainState(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=1, backup_every=args.backup_every
    )
    losses: dict[int, float] = {}

    @taskd.resilient(state)
    def train() -> None:
        model.train()
        batches = iter(loader)
        while state.step < args.steps:
            optimizer.zero_grad()
            total = torch.zeros(())
            for number in range(args.accumulate):
                total += once(next(batches), number == args.accumulate - 1) / args.accumulate
            if "dp" in names:
                average(parameters, mesh)
            clip(parameters)
            dist.all_reduce(total, dist.ReduceOp.MAX if "pp" in names else dist.ReduceOp.SUM)  # no rank steps alone
            optimizer.step()
            scheduler.step()
            state.commit()
            losses[state.step] = float(total) / (1 if "pp" in names else dist.get_world_size())
            if dist.get_rank() == 0 and state.step % 50 == 0:
                print(f"step {state.step} of {args.steps}: loss {losses[state.step]:.3f}", flush=True)
        dist.barrier()  # no rank leaves while a peer still finishes the last step

    train()
    if dist.get_rank() == 0 and args.out is not None:
        args.out.write_text(json.dumps({"steps": state.step, "losses": losses}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
