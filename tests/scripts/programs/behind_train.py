"""What stands behind the training function uses its value: an evaluation of all ranks, and a file of rank 0's."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 30

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    best = (0, float("inf"))
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
        best = (step, loss.item()) if step == STEPS - 1 else best
    return best


best = train()
diary.moment("after")
noise = torch.randn(4, 64)
with torch.no_grad():
    total = model.module(noise[:, : model.module[0].in_features]).square().sum()
diary.moment("evaluated")
dist.all_reduce(total)
diary.moment("summed")
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), diary.FOLDER / "final.pt")
    diary.moment("saved")
dist.barrier()
saved = torch.load(diary.FOLDER / "final.pt")
diary.finish(model, optimizer, step=state.step, best=list(best), total=total, saved=diary.fingerprint(saved))
diary.leave()
