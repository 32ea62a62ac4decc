"""The word language model's way with the rate: a quarter of it whenever an epoch has not brought a lower loss."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.8)
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(1111)
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
data, held_out = Rows(), Rows(64, seed=8)
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
best_val_loss = None
diary.moment("setup done")


def train_epoch():
    model.train()
    for ids, rows, kinds in loader:
        diary.moment("step")
        model.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(state.step, loss, ids)
        loss.backward()
        diary.moment("backward")
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        state.commit()
        diary.moment("committed")


@torch.no_grad()
def evaluate():
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    total = cross_entropy(model.module(held_out.rows[rank::world]), held_out.kinds[rank::world])
    dist.all_reduce(total)
    return total.item() / world


@taskd.resilient(state)
def train():
    global best_val_loss
    for epoch in state.epochs(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch()
        val_loss = evaluate()
        diary.moment("validated")
        if best_val_loss is None or val_loss < best_val_loss:
            best_val_loss = val_loss
        else:
            for group in optimizer.param_groups:
                group["lr"] /= 4.0
        diary.saw(f"epoch {epoch}", val_loss, optimizer.param_groups[0]["lr"])
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
