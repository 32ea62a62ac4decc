"""An IterableDataset that knows its position, in a StatefulDataLoader."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

STEPS = 40


class Stream(IterableDataset):
    """Endless rows; the n-th of a rank is always the same."""

    def __init__(self, rank):
        self.source = Rows()
        self.position = rank

    def __iter__(self):
        while True:
            self.position = (self.position * 1103515245 + 12345) % (1 << 31)
            yield self.source[self.position % len(self.source)]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = StatefulDataLoader(Stream(dist.get_rank()), batch_size=4)
torch.manual_seed(1 + dist.get_rank())
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for ids, rows, kinds in loader:
        if state.step == STEPS:
            break
        diary.moment("step")
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(state.step, loss, ids)
        loss.backward()
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
