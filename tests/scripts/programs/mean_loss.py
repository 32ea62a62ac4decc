"""The loss is averaged over all ranks after the optimizer's step, to be printed; the scheduler steps once an epoch."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
sampler: DistributedSampler = DistributedSampler(Rows())
loader = DataLoader(Rows(), batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            diary.moment("stepped")
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            total += mean.item() / dist.get_world_size()
            state.commit()
            diary.moment("committed")
        print(f"epoch {epoch}: {total / len(loader):.4f}")
        scheduler.step()


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
