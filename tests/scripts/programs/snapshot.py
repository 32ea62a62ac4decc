"""A snapshot every ten steps; the set-up resumes from the newest one, also in a process that takes a place."""

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
SNAPSHOT = diary.FOLDER / "snapshot.pt"
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
if SNAPSHOT.exists():
    snapshot = torch.load(SNAPSHOT)
    model.module.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    state.step = snapshot["step"]
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
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")
        if state.step % 10 == 0 and dist.get_rank() == 0:
            unfinished = SNAPSHOT.with_suffix(".new")
            content = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": state.step}
            torch.save(content, unfinished)
            diary.moment("snapshot")
            unfinished.rename(SNAPSHOT)


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
