"""torch.distributed.checkpoint every ten steps, after the commit."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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
        if state.step % 10 == 0:
            diary.moment("checkpoint")
            dcp.save({"model": model.module.state_dict()}, checkpoint_id=diary.FOLDER / f"dcp-{state.step}")
            diary.moment("checkpointed")


train()
diary.moment("after")
written = [step for step in range(10, STEPS + 1, 10) if (diary.FOLDER / f"dcp-{step}" / ".metadata").exists()]
diary.finish(model, optimizer, step=state.step, **{f"whole {step}": True for step in written})
diary.leave()
