"""A callback with a dict of averaged tensors that it changes in place after each step; evaluations use it."""

import torch
import torch.distributed as dist
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class Shadow:
    """An average of the weights by name."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = {}

    def on_fit_start(self, module):
        self.shadow = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def on_train_batch_end(self, module):
        for name, value in module.named_parameters():
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
shadow = Shadow()
shadow.on_fit_start(model.module)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


def evaluate(step):
    _, rows, kinds = batch_of(999, dist.get_rank(), dist.get_world_size(), size=8)
    model.eval()
    with torch.no_grad():
        total = cross_entropy(functional_call(model.module, shadow.shadow, rows), kinds)
    model.train()
    dist.all_reduce(total)
    diary.saw(f"evaluation {step}", total)


state.after_commit(evaluate, every=10)


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
        shadow.on_train_batch_end(model.module)
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, shadow=diary.fingerprint(shadow.shadow))
diary.leave()
