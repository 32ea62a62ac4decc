"""The transfer-learning tutorial: a phase of training and one of validation in each epoch, the best
weights at the end.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
net = network()
net[0].requires_grad_(False)
model = DistributedDataParallel(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net[3].parameters(), lr=0.3, momentum=0.9)
datasets = {"train": Rows(), "val": Rows(80, seed=23)}
samplers: dict[str, DistributedSampler] = {
    phase: DistributedSampler(datasets[phase], shuffle=phase == "train", seed=3) for phase in datasets
}
loaders = {phase: DataLoader(datasets[phase], batch_size=4, sampler=samplers[phase]) for phase in datasets}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2 * len(loaders["train"]), gamma=0.5)
state = taskd.TrainState(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    loader=loaders["train"],
    sampler=samplers["train"],
    seed=1,
)
diary.moment("setup done")


def train_phase():
    model.train()
    for ids, rows, kinds in loaders["train"]:
        diary.moment("step")
        optimizer.zero_grad()
        loss = criterion(model(rows), kinds)
        diary.saw(state.step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


@torch.no_grad()
def val_phase():
    model.eval()
    right = torch.zeros(())
    for _, rows, kinds in loaders["val"]:
        right += (model.module(rows).argmax(dim=1) == kinds).sum()
    dist.all_reduce(right)
    return right.item() / len(datasets["val"])


@taskd.resilient(state)
def train_model():
    best_acc = 0.0
    best_model_wts = copy.deepcopy(model.module.state_dict())
    for epoch in state.epochs(EPOCHS):
        samplers["train"].set_epoch(epoch)
        train_phase()
        epoch_acc = val_phase()
        diary.moment("validated")
        if epoch_acc > best_acc:
            best_acc = epoch_acc
            best_model_wts = copy.deepcopy(model.module.state_dict())
        diary.saw(f"epoch {epoch}", epoch_acc, best_acc)
        diary.moment("epoch done")
    return best_acc, best_model_wts


best_acc, best_model_wts = train_model()
model.module.load_state_dict(best_model_wts)
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step, best=best_acc)
diary.leave()
