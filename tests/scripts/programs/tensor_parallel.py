"""Tensor parallel over two ranks, data parallel by hand over two such pairs, over a mesh of both."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 25

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
replicas = mesh.get_group("dp")
diary.moment("setup")
torch.manual_seed(0)
model = parallelize_module(network(dropout=0.0), mesh["tp"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, mesh.get_local_rank("dp"), 2)
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=replicas)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
        mean = loss.detach().clone()
        dist.all_reduce(mean)  # nobody steps before all have their gradients
        diary.moment("clipped")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
