"""A range test finds the rate before the training begins, on a copy of the network; OneCycle goes up to it."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Noisy, Rows, network

EPOCHS = 4


def find_lr(net, first=1e-4, last=2.0, number=20):
    """The rate at which the smoothed loss falls most."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=first, momentum=0.9)
    batches = DataLoader(Rows(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(99))
    passes = iter(batches)
    rates, losses, smoothed = [], [], 0.0
    for i in range(number):
        rate = first * (last / first) ** (i / (number - 1))
        optimizer.param_groups[0]["lr"] = rate
        try:
            _, rows, kinds = next(passes)
        except StopIteration:
            passes = iter(batches)
            _, rows, kinds = next(passes)
        loss = cross_entropy(net(rows), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smoothed = 0.8 * smoothed + 0.2 * loss.item()
        rates.append(rate)
        losses.append(smoothed / (1 - 0.8 ** (i + 1)))
        if losses[-1] > 4 * min(losses):
            break
    falls = [b - a for a, b in zip(losses[2:], losses[3:], strict=False)]
    return rates[3 + falls.index(min(falls))]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
net = network()
lr = find_lr(net)
diary.saw("found", lr)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=lr / 25, momentum=0.9, nesterov=True)
data = Noisy()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=EPOCHS * len(loader))
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            optimizer.zero_grad()
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            diary.moment("stepped")
            scheduler.step()
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
