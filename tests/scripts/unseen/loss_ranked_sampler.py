"""Hard examples come more often: a sampler draws an epoch's rows by the losses that all ranks have seen last."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class HardExampleSampler(Sampler):
    """A row's chance is its last loss; the same draw on all ranks, and each takes its part."""

    def __init__(self, number, rank, world, seed=17):
        self.losses = torch.full((number,), 2.0)
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def report(self, ids, losses):
        self.losses[ids] = losses

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        drawn = torch.multinomial(self.losses + 0.05, len(self.losses), replacement=True, generator=generator)
        return iter(drawn[self.rank :: self.world].tolist())

    def __len__(self):
        return len(self.losses) // self.world


def of_all_ranks(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler = HardExampleSampler(len(data), dist.get_rank(), dist.get_world_size())
loader = DataLoader(data, batch_size=4, sampler=sampler)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            losses = cross_entropy(model(rows), kinds, reduction="none")
            loss = losses.mean()
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            scheduler.step()
            sampler.report(of_all_ranks(ids), of_all_ranks(losses.detach()))
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
