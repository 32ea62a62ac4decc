"""A training whose copies are attacked: FSDP2 over two nodes with one rank each, a copy in every step.

argv: folder, rank to be killed (-1: none). As in `program.py`, the ranks repeat without learning anything until the
file `struck` is there. Each rank's data begin with `MARK`, which is in no message of the training. A process that
reads `MARK` has therefore read a copy.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import taskd
from taskd.adaptors.training.sharding.shards import local
from taskd.adaptors.training.tree import bytes_of
from tests.attacks.model import MARK
from tests.attacks.program import BEFORE, FOLDER, STEPS, die_once
from tests.leave import leave_stock


class Net(nn.Module):
    """A model with a buffer that belongs to its rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.register_buffer("learnt", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mark", torch.frombuffer(bytearray(MARK * 512), dtype=torch.uint8).clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def main() -> None:
    """Train, and write the digest of this rank's parts."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    state = taskd.TrainState(model=net, optimizer=optimizer, seed=1, backup_every=1)

    @taskd.resilient(state)
    def train() -> None:
        learnt = net.get_buffer("learnt")
        while int(learnt) < STEPS:
            struck = torch.tensor(int((FOLDER / "struck").exists()))
            dist.broadcast(struck, 0)
            idle = int(learnt) == BEFORE and not struck
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * rank + int(learnt)))
            optimizer.param_groups[0]["lr"] = 0.0 if idle else 0.05
            optimizer.zero_grad()
            (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            learnt += not idle
            state.commit()
            if idle:
                (FOLDER / f"waits-{rank}").touch()
            die_once(rank, int(learnt))

    train()
    parts = torch.cat([local(parameter).detach().flatten() for parameter in net.parameters()])
    digest = hashlib.sha256(bytes_of(parts) + bytes_of(net.get_buffer("mark"))).hexdigest()
    (FOLDER / f"digest-{rank}").write_text(f"{rank} {digest}")
    dist.destroy_process_group()
    leave_stock()


if __name__ == "__main__":
    main()
