"""torch's AveragedModel in the state; the mean loss of all ranks is known before it is updated."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
state = taskd.TrainState(model=model, optimizer=optimizer, ema=ema, seed=1)
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
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        diary.moment("reduced")
        ema.update_parameters(model.module)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, ema, step=state.step)
diary.leave()
