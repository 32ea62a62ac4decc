"""A StatefulDataLoader, whose own state is a part of the checkpoint that is written after some commits."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

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
loader = StatefulDataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)
diary.moment("setup done")


def save(step):
    file = diary.FOLDER / f"checkpoint-{dist.get_rank()}.pt"
    unfinished = file.with_suffix(".new")
    content = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save({**content, "step": step}, unfinished)
    diary.moment("save")
    unfinished.rename(file)
    dist.barrier()


state.after_commit(save, every=8)


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


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
