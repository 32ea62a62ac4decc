"""Plain torchrun: a snapshot of everything at each epoch's end, loaded at the start."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4
SNAPSHOT = diary.FOLDER / "snapshot.pt"

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if SNAPSHOT.exists():
    snapshot = torch.load(SNAPSHOT)
    model.module.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    first = snapshot["epochs"]
diary.moment("setup done")
dist.barrier()
sampler: DistributedSampler = DistributedSampler(Rows(), shuffle=True, seed=3)
loader = DataLoader(Rows(), batch_size=4, sampler=sampler)
for epoch in range(first, EPOCHS):
    torch.manual_seed(100 * epoch + dist.get_rank())
    sampler.set_epoch(epoch)
    for number, (ids, rows, kinds) in enumerate(loader):
        diary.moment("step")
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw((epoch, number), loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
    if dist.get_rank() == 0:
        snapshot = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        unfinished = SNAPSHOT.with_suffix(".new")
        torch.save(snapshot, unfinished)
        diary.moment("checkpoint")
        unfinished.rename(SNAPSHOT)
        diary.moment("checkpointed")
    dist.barrier()
    diary.moment("epoch")
diary.moment("after")
diary.finish(model, optimizer)
diary.leave()
