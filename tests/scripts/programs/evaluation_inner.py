"""All ranks evaluate the module inside of DDP behind the commit: the wrapper's own mode stays as it is."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 3

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
net: nn.Module = network(dropout=0.3)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler)
diary.moment("setup done")


def evaluate():
    net.eval()
    with torch.no_grad():
        right = (net(data.rows).argmax(1) == data.kinds).sum().float()
    diary.moment("evaluation")
    dist.all_reduce(right)
    net.train()
    diary.saw(f"accuracy {state.step}", right)


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            state.commit()
            diary.moment("committed")
            if state.step % 4 == 0:
                evaluate()


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
