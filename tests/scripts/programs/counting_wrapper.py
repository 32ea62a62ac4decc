"""A wrapper around the loader gives the sampler its epoch: the number of passes that it has begun itself."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class PreparedLoader:
    """A loader whose sampler shuffles anew in each pass, without a call of the script."""

    def __init__(self, loader):
        self.loader = loader
        self.calls = 0

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.loader.sampler.set_epoch(self.calls)
        self.calls += 1
        yield from self.loader


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
prepared = PreparedLoader(loader)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for _ in state.epochs(EPOCHS):
        for ids, rows, kinds in prepared:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
