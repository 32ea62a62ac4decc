"""A pipeline of two equal stages, replicated twice: the stages have other weights of the same names and shapes."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import mse_loss

import taskd
from tests.scripts import diary

STEPS = 25

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
share, number = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
diary.moment("setup")


class Block(torch.nn.Module):
    """Counts its passes in a buffer, which decides what it gives."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, rows):
        self.passes += 1
        return torch.tanh(self.norm(self.linear(rows)) * (1 + self.passes / 1000))


torch.manual_seed(number)
model = Block()
stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, 4, loss_fn=mse_loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(2 * step + share))
        optimizer.zero_grad()
        losses = []
        if number == 0:
            schedule.step(rows)
        else:
            schedule.step(target=rows.flip(1), losses=losses)
        diary.saw(step, sum(losses, torch.zeros(())), [step])
        diary.moment("backward")
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        dist.barrier()  # nobody steps before all have their gradients
        diary.moment("averaged")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
