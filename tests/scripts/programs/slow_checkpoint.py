"""Rank 0 writes a checkpoint for seconds after a commit, while its peers go on to the next step."""

import os
import time

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
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")
        if state.step % 15 == 0 and dist.get_rank() == 0:
            diary.moment("checkpoint")
            with (diary.FOLDER / "checkpoint.pt").open("wb") as file:
                torch.save(state.model.state_dict(), file)
                for _ in range(70):
                    file.write(b"0" * 4096)
                    file.flush()
                    os.fsync(file.fileno())
                    time.sleep(0.05)  # a slow disk
            diary.moment("checkpointed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
