"""The set-up makes a new numbered folder for the run; rank 0 writes its checkpoints and its metrics there."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
RUNS = diary.FOLDER / "runs"
if dist.get_rank() == 0:
    RUNS.mkdir(exist_ok=True)
    run = RUNS / f"run{len(list(RUNS.iterdir()))}"
    run.mkdir()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        state.commit()
        diary.moment("committed")
        if dist.get_rank() == 0 and state.step % 10 == 0:
            torch.save(model.module.state_dict(), run / f"step{state.step}.pt")
            diary.moment("saved")


train()
diary.moment("after")
files = sorted(path.name for path in run.iterdir()) if dist.get_rank() == 0 else []
diary.finish(model, optimizer, step=state.step, files=files)
diary.leave()
