"""A user's training, by torch alone or with the SDK. argv: the job's folder, and `plain` or `sdk`.

Rules:

1. It needs neither numpy nor anything of this repository.
2. Each rank reports by files: its start, its arrival at the step in which it waits for the player's order, and its
   result. A start without LOCAL_RANK is a ghost, and is reported as one.
3. The order is one word: `on`, or `die`. With `die`, the process of rank 1 kills itself.
"""

import hashlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, WAITS_AT = 20, 8
MORTAL = 1
_LEFT_OUT = (b"TASKD_", b"PYTHONPATH", b"TORCHINDUCTOR_")
"""Prefixes of variables: taskd's own, the player's, and those that torch sets when it is imported."""


def main() -> None:
    """Train, and write the digest of the weights."""
    folder, flavour = Path(sys.argv[1]), sys.argv[2]
    pid = os.getpid()
    if "LOCAL_RANK" not in os.environ:
        (folder / f"ghost-{pid}").touch()
        return
    rank = int(os.environ["RANK"])
    (folder / f"started-{rank}-{pid}-{time.time_ns()}").touch()
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def advance(step: int) -> None:
        generator = torch.Generator().manual_seed(step * 2 + rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 16, generator=generator)), torch.ones(8, 4))
        loss.backward()
        optimizer.step()

    if flavour == "sdk":
        _train_by_sdk(folder, rank, model, optimizer, advance)
    else:
        for step in range(STEPS):
            advance(step)
            _wait_for_order(folder, rank, step)
    weights = [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]
    result = {"pid": pid, "digest": hashlib.sha256(repr(weights).encode()).hexdigest(), **_surroundings()}
    (folder / f"result-{rank}").write_text(json.dumps(result))
    print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


def _train_by_sdk(folder: Path, rank: int, model, optimizer, advance) -> None:
    import taskd

    state = taskd.TrainState(model=model, optimizer=optimizer)

    @taskd.resilient(state)
    def train() -> None:
        for step in range(state.step, STEPS):
            advance(step)
            _wait_for_order(folder, rank, step)
            state.commit()

    train()


def _surroundings() -> dict:
    """Return the properties of a rank's surroundings that it has from torchrun."""
    return {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "ignored": [number for number in range(1, 65) if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": _umask(),
        "folder": os.getcwd(),
        "variables": sorted(
            repr(name) for name, value in os.environb.items() if value and not name.startswith(_LEFT_OUT)
        ),
    }


def _umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def _wait_for_order(folder: Path, rank: int, step: int) -> None:
    order = folder / "order"
    if step != WAITS_AT:
        return
    (folder / f"here-{rank}-{os.getpid()}").touch()
    while not order.exists():
        time.sleep(0.02)
    if rank == MORTAL and order.read_text() == "die":
        try:
            (folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
