"""A pipeline of two equal stages: the peer has other weights of the same names and shapes."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss

import taskd
from tests.scripts import diary

STEPS = 40

dist.init_process_group("gloo")
rank = dist.get_rank()
diary.moment("setup")
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=mse_loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(rows)
        else:
            schedule.step(target=rows.flip(1), losses=losses)
        diary.saw(step, sum(losses, torch.zeros(())), [step])
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, step=state.step)
diary.leave()
