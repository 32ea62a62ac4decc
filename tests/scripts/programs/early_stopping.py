"""Early stopping as one object: losses without progress are counted, and the best weights kept; behind each epoch."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 12


class EarlyStopping:
    """Says when the loss has not become better for some epochs."""

    def __init__(self, model, patience):
        self.patience = patience
        self.lowest = float("inf")
        self.counter = 0
        self.best = copy.deepcopy(model.state_dict())

    def __call__(self, loss, model):
        if loss < self.lowest:
            self.lowest, self.counter, self.best = loss, 0, copy.deepcopy(model.state_dict())
        else:
            self.counter += 1
        return self.counter >= self.patience

    def state_dict(self):
        return {"lowest": self.lowest, "counter": self.counter, "best": self.best}

    def load_state_dict(self, state):
        self.lowest, self.counter, self.best = state["lowest"], state["counter"], state["best"]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
data, held_out = Rows(), Rows(64, seed=8)
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
stopping = EarlyStopping(model.module, patience=3)
state = taskd.TrainState(
    model=model, optimizer=optimizer, loader=loader, sampler=sampler, replicated={"stopping": stopping}, seed=1
)
diary.moment("setup done")


def validate():
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        total = cross_entropy(model.module(held_out.rows[rank::world]), held_out.kinds[rank::world])
    model.train()
    dist.all_reduce(total)
    return total.item() / world


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
        stop = stopping(validate(), model.module)
        diary.saw(f"end of epoch {epoch}", stopping.counter, stopping.lowest)
        diary.moment("counted" if stopping.counter else "best")
        dist.barrier()
        if stop:
            break


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, counter=stopping.counter, best=diary.fingerprint(stopping.best))
diary.leave()
