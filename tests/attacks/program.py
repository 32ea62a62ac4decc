"""The attacked training: real data, DDP, and one process that is killed after the attack.

argv: folder, rank to be killed (-1: none). After `BEFORE` steps the ranks repeat without learning anything until the
file `struck` is there. So the weights are those of an undisturbed run, however long an attack takes.
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
from tests.attacks.model import make
from tests.leave import leave_stock

BEFORE, KILLED_AT, STEPS = 6, 9, 14
FOLDER, VICTIM = Path(sys.argv[1]), int(sys.argv[2])


def main() -> None:
    """Train, and write the digest of the weights."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net, optimizer = make()
    model = DistributedDataParallel(net)
    state = taskd.TrainState(
        model=model, optimizer=optimizer, backup_every=int(os.environ.get("ATTACK_BACKUP", "0")) or None
    )
    if checkpoints := os.environ.get("ATTACK_CHECKPOINTS"):
        assert taskd.load_latest(state, checkpoints) is None
    if extension := os.environ.get("ATTACK_EXTENSION"):
        build(Path(extension))

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
    leave_stock()


def build(extension: Path) -> None:
    """Load an extension as torch does, but without the compiler."""
    from torch.utils.file_baton import FileBaton

    baton = FileBaton(str(extension.with_name("lock")))
    if baton.try_acquire():
        extension.touch()
        baton.release()
    else:
        baton.wait()
    assert extension.exists()


def die_once(rank: int, learnt: int) -> None:
    """Be killed, as by the kernel's OOM killer, or fail with the text of the attack."""
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
