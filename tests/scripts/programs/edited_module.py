"""Somebody edits a module of the script while it trains: the step after the tenth has another recipe on disk."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40
MODULE = diary.FOLDER / f"rank{diary.RANK}" / "recipe.py"
if not MODULE.exists():
    MODULE.parent.mkdir()
    MODULE.write_text("SMOOTHING = 0.0\n")
sys.dont_write_bytecode = True
sys.path.insert(0, str(MODULE.parent))
import recipe  # type: ignore[import-not-found] # noqa: E402

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        if step == 10:
            MODULE.write_text("SMOOTHING = 0.3\n")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds, label_smoothing=recipe.SMOOTHING)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
