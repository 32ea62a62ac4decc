"""DINO: a teacher by momentum, a centre of its outputs, and schedules that are arrays with a value for each step."""

import copy

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, Rows

EPOCHS, FROZEN_EPOCHS, OUT = 4, 1, 12


def cosine(begin, end, steps, warmup=0, start=0.0):
    rest = np.arange(steps - warmup)
    falling = end + 0.5 * (begin - end) * (1 + np.cos(np.pi * rest / len(rest)))
    return np.concatenate((np.linspace(start, begin, warmup), falling))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, 16))
        self.last_layer = nn.Linear(16, OUT, bias=False)

    def forward(self, crops):
        rows = self.backbone(torch.cat(crops))
        return self.last_layer(F.normalize(rows, dim=-1)).chunk(len(crops))


class DINOLoss(nn.Module):
    def __init__(self, warm, final, warm_epochs, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(1, OUT))
        self.temperatures = np.concatenate((np.linspace(warm, final, warm_epochs), np.full(EPOCHS, final)))

    def forward(self, student_outputs, teacher_outputs, epoch):
        sharp = self.temperatures[epoch]
        total, terms = torch.zeros(()), 0
        for i, seen in enumerate(teacher_outputs):
            target = F.softmax((seen - self.center) / sharp, dim=-1).detach()
            for j, output in enumerate(student_outputs):
                if i != j:
                    total = total - (target * F.log_softmax(output / 0.1, dim=-1)).sum(-1).mean()
                    terms += 1
        self.update_center(torch.cat(teacher_outputs))
        return total / terms

    @torch.no_grad()
    def update_center(self, outputs):
        mean = outputs.mean(dim=0, keepdim=True)
        dist.all_reduce(mean)
        self.center.mul_(self.momentum).add_(mean / dist.get_world_size(), alpha=1 - self.momentum)


def multi_crop(rows):
    wide = [rows + 0.05 * torch.randn_like(rows) for _ in range(2)]
    local = [rows * (torch.rand_like(rows) > 0.4) for _ in range(2)]
    return wide, local


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
student = DistributedDataParallel(Net())
teacher = copy.deepcopy(student.module).requires_grad_(False)
criterion = DINOLoss(0.04, 0.07, warm_epochs=2)
optimizer = torch.optim.AdamW(student.parameters())
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
rates = cosine(5e-3, 1e-5, EPOCHS * len(loader), warmup=len(loader))
decays = cosine(0.04, 0.4, EPOCHS * len(loader))
momenta = cosine(0.9, 1.0, EPOCHS * len(loader))
state = taskd.TrainState(
    student=student,
    teacher=teacher,
    criterion=criterion,
    optimizer=optimizer,
    loader=loader,
    sampler=sampler,
    seed=1,
)
diary.moment("setup done")


def train_one_epoch(epoch):
    for ids, rows, _ in loader:
        diary.moment("step")
        it = state.step
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = float(rates[it]), float(decays[it])
        wide, local = multi_crop(rows)
        with torch.no_grad():
            seen = teacher(wide)
        loss = criterion(student(wide + local), seen, epoch)
        diary.saw(it, loss, ids, criterion.center.sum())
        optimizer.zero_grad()
        loss.backward()
        diary.moment("backward")
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        if epoch < FROZEN_EPOCHS:
            student.module.last_layer.weight.grad = None
        optimizer.step()
        diary.moment("stepped")
        with torch.no_grad():
            m = float(momenta[it])
            for followed, following in zip(student.module.parameters(), teacher.parameters(), strict=True):
                following.mul_(m).add_((1 - m) * followed.detach())
        state.commit()
        diary.moment("committed")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        train_one_epoch(epoch)
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(student, optimizer, teacher, criterion, step=state.step)
diary.leave()
