"""An average of weights and BatchNorm's statistics; these are each rank's own, and reduced at each epoch's end."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, WIDTH, Rows

EPOCHS = 4


class Average:
    """A copy of the model that follows it, buffers too."""

    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, its in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(self.decay * mine + (1 - self.decay) * its)

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, values):
        self.module.load_state_dict(values)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(WIDTH, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, KINDS))
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
average = Average(net)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(
    model=model, optimizer=optimizer, loader=loader, sampler=sampler, replicated={"average": average}, seed=1
)
diary.moment("setup done")


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
            average.update(net)
            state.commit()
            diary.moment("committed")
        for name, buffer in net.named_buffers():
            if "running" in name:
                dist.all_reduce(buffer)
                buffer.div_(dist.get_world_size())
        diary.moment("reduced")


train()
diary.moment("after")
diary.finish(model, optimizer, average, step=state.step)
diary.leave()
