"""The collator draws masks in the loader's workers, from torch's global generator."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


def collate(samples):
    """A batch of which some numbers are masked, others in each pass."""
    ids, rows, kinds = default_collate(samples)
    return ids, rows.masked_fill(torch.rand(rows.shape) < 0.15, 0.0), kinds


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, collate_fn=collate)
torch.manual_seed(10 + dist.get_rank())
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler)
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
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
