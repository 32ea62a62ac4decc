"""A job of two ranks on two nodes that are killed while they copy their states: `copying.py`, under torchrun.

COPYING_KILLS is a line of JSON. For each kill it has the first step at which it is due, the ranks, and the number of
the passage inside the copying. None is due before the job has come further than at the last one: a rank that fails
thrice in one step is not a matter of copies. COPYING_STEPS is the length of the job.
"""

import json
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
from torch.nn.functional import mse_loss

import taskd
from taskd.adaptors.training.copies import copier, snapshot
from taskd.adaptors.training.copies.copy_file import CopyFile
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.runtime.links.peers import PeerLink
from tests.scripts import diary
from tests.sharded.programs.mutations import MUTATIONS

WIDTH = 256
KILLS = json.loads(os.environ.get("COPYING_KILLS", "[]"))
passed = [0]
rounds = [0]
now = [0]


def passing(where: str) -> None:
    """Record a passage inside the copying, at which this rank may be killed."""
    rounds[0] += where == "before room"
    if rounds[0] == 2:
        (diary.FOLDER / "first-round").touch()
    number = next((index for index in range(len(KILLS)) if not _done(index).exists()), None)
    if number is None or not (diary.FOLDER / "first-round").exists():
        return
    if now[0] < max(KILLS[number]["step"], _struck_at(number - 1) + 2):
        passed[0] = 0
        return
    passed[0] += 1
    victims = KILLS[number]["ranks"]
    peers = [rank for rank in victims if rank != diary.RANK]
    struck = any((diary.FOLDER / f"struck-{number}-{rank}").exists() for rank in peers)
    mine = diary.FOLDER / f"struck-{number}-{diary.RANK}"
    if diary.RANK not in victims or mine.exists() or not (struck or passed[0] >= KILLS[number]["passage"]):
        return
    mine.write_text(where)
    if all((diary.FOLDER / f"struck-{number}-{rank}").exists() for rank in victims):
        _done(number).write_text(str(now[0]))
    os.kill(os.getpid(), signal.SIGKILL)


def _struck_at(number: int) -> int:
    """Return the step of that kill; -2 before the first."""
    return int(_done(number).read_text() or -2) if number >= 0 else -2


def _done(number: int) -> Path:
    return diary.FOLDER / f"killed-{number}"


def passes(owner: Any, name: str) -> None:
    """Make a call of this function a passage, before and after it."""
    honest: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        passing(f"before {name}")
        result = honest(*args, **options)
        passing(f"after {name}")
        return result

    setattr(owner, name, call)


for owner, name in (
    (CopyFolder, "room"),
    (CopyFile, "erase"),
    (CopyFile, "seal"),
    (snapshot.Snapshot, "complete"),
    (snapshot.Snapshot, "digest"),
    (copier.Copier, "_outcome"),
    (PeerLink, "wait"),
):
    passes(owner, name)


def main() -> None:
    MUTATIONS.get(os.environ.get("COPYING_MUTATION", ""), lambda: None)()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = taskd.TrainState(model=model, optimizer=optimizer, seed=1, backup_every=1)
    kept = [id(one) for one in (model, optimizer, *model.parameters())]

    @taskd.resilient(state)
    def train() -> None:
        for step in range(state.step, int(os.environ["COPYING_STEPS"])):
            now[0] = step
            rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
            optimizer.zero_grad()
            loss = mse_loss(model(rows), rows.flip(1))
            loss.backward()
            optimizer.step()
            state.commit()
        diary.saw("end", loss)

    train()
    assert kept == [id(one) for one in (model, optimizer, *model.parameters())]
    tensors = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    diary.finish(step=state.step, tensors=diary.fingerprint(tensors))
    diary.leave()


main()
