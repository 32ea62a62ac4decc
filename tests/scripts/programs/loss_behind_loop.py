"""Names of the inner loop are used behind it, the last loss and the number of batches; then a validation."""

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
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        total, count = 0.0, 0
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            total, count = total + loss.item(), count + 1
            state.commit()
            diary.moment("committed")
        print(f"epoch {epoch}: last loss {loss.item():.4f}, mean {total / count:.4f}")
        model.eval()
        with torch.no_grad():
            right = (model.module(data.rows).argmax(1) == data.kinds).float().mean()
        diary.moment("evaluation")
        dist.all_reduce(right)
        model.train()
        diary.saw(f"end of epoch {epoch}", right)


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
