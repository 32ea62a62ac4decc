"""Rank 0 makes a run id, and broadcasts it and a seed in the set-up."""

import uuid
from contextlib import suppress

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
told = [uuid.uuid4().hex if dist.get_rank() == 0 else None]
dist.broadcast_object_list(told, src=0)
run_id = told[0]
with suppress(FileExistsError), (diary.FOLDER / "run-id").open("x") as file:
    file.write(str(run_id))
seed = torch.tensor([1234 if dist.get_rank() == 0 else 0])
dist.broadcast(seed, 0)
shuffle = int(seed)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(shuffle + step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
same = run_id == (diary.FOLDER / "run-id").read_text()
diary.finish(model, optimizer, step=state.step, same_run=same, shuffle=shuffle)
diary.leave()
