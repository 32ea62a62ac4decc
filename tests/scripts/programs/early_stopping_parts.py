"""Early stopping in two parts: the count, and the best weights with a list of all losses beside them."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 8


class Kept:
    """Attributes that are saved and loaded."""

    def state_dict(self):
        return dict(self.__dict__)

    def load_state_dict(self, values):
        self.__dict__.update(values)


class Best(Kept):
    """The best weights, as soon as there are any, and all losses."""

    def __init__(self):
        self.weights, self.losses = None, []


class Patience(Kept):
    """Epochs since the loss was lowest."""

    def __init__(self):
        self.lowest, self.waited = float("inf"), 0


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
data, held_out = Rows(), Rows(64, seed=8)
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
best, patience = Best(), Patience()
state = taskd.TrainState(
    model=model,
    optimizer=optimizer,
    loader=loader,
    sampler=sampler,
    replicated={"best": best, "patience": patience},
    seed=1,
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
            optimizer.step()
            state.commit()
            diary.moment("committed")
        best.losses.append(validate())
        if best.losses[-1] < patience.lowest:
            patience.lowest, patience.waited = best.losses[-1], 0
            best.weights = copy.deepcopy(model.module.state_dict())
        else:
            patience.waited += 1
        diary.moment("judged")
        dist.barrier()


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, losses=best.losses, waited=patience.waited)
diary.leave()
