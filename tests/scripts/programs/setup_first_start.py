"""The set-up empties the log that rank 0 writes a line to in each step, in the first start alone."""

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
FILE = diary.FOLDER / "log.txt"
if dist.get_rank() == 0:
    log = FILE.open("a" if taskd.restart_count() else "w")
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
        if dist.get_rank() == 0:
            log.write(f"{step} {loss.item():.6f}\n")
            log.flush()
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
steps = [line.split()[0] for line in FILE.read_text().splitlines()] if dist.get_rank() == 0 else []
diary.finish(model, optimizer, step=state.step, logged=sorted(set(steps), key=int))
diary.leave()
