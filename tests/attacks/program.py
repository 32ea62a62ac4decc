"""The training that is attacked: real data, DDP, and one process killed after the attack.

argv: folder, rank to be killed (-1: none). After `BEFORE` steps the ranks go round without learning anything until the
file `struck` is there, so that however long an attack takes, the weights are those of an undisturbed run.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

BEFORE, KILLED_AT, STEPS = 6, 9, 14
FOLDER, VICTIM = Path(sys.argv[1]), int(sys.argv[2])


class Net(torch.nn.Module):
    """A model that counts the steps in which it has learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.register_buffer("learnt", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def main() -> None:
    """Train, and leave the digest of the weights."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    state = taskd.TrainState(model=model, optimizer=optimizer)

    @taskd.resilient(state)
    def train() -> None:
        learnt = net.get_buffer("learnt")
        while int(learnt) < STEPS:
            struck = torch.tensor(int((FOLDER / "struck").exists()))
            dist.broadcast(struck, 0)
            idle = int(learnt) == BEFORE and not struck
            draw = torch.Generator().manual_seed(1000 * rank + int(learnt))
            x = torch.randn(8, 16, generator=draw)
            optimizer.param_groups[0]["lr"] = 0.0 if idle else 0.05
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            learnt += not idle
            state.commit()
            if idle:
                (FOLDER / f"waits-{rank}").touch()
            die_once(rank, int(learnt))

    train()
    flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    (FOLDER / f"digest-{rank}").write_text(hashlib.sha256(flat.numpy().tobytes()).hexdigest())
    dist.destroy_process_group()


def die_once(rank: int, learnt: int) -> None:
    """Be killed, as by the kernel's OOM killer; or fail, with the text that the attack has chosen."""
    mark, text = FOLDER / "killed", os.environ.get("ATTACK_ERROR")
    if (rank, learnt) != (VICTIM, KILLED_AT) or mark.exists():
        return
    mark.touch()
    if text is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise OSError(bytes.fromhex(text).decode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
