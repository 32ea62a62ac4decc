"""torchvision's detection reference: a linear warm-up in the first epoch, milestones for the others, a
logger of metrics.
"""

from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, WIDTH, Rows

EPOCHS = 4


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(lambda: deque(maxlen=20))

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].append(float(value))

    def log_every(self, iterable, freq, header):
        for i, one in enumerate(iterable):
            yield one
            if i % freq == 0 and dist.get_rank() == 0:
                means = (f"{name}: {sum(values) / len(values):.4f}" for name, values in self.meters.items())
                print(header, *means, flush=True)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU())
        self.kind, self.box = nn.Linear(24, KINDS), nn.Linear(24, 4)

    def forward(self, rows, kinds):
        inner = self.backbone(rows)
        boxes = smooth_l1_loss(self.box(inner), rows[:, :4])
        return {"loss_classifier": cross_entropy(self.kind(inner), kinds), "loss_box": boxes}


def reduce_dict(values):
    with torch.no_grad():
        reduced = torch.stack([values[name] for name in sorted(values)])
        dist.all_reduce(reduced)
        return dict(zip(sorted(values), reduced / dist.get_world_size(), strict=True))


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(Detector())
optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[24, 36], gamma=0.1)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 4, drop_last=True))
state = taskd.TrainState(
    model=model, optimizer=optimizer, scheduler=lr_scheduler, loader=loader, sampler=sampler, seed=1
)
diary.moment("setup done")


def train_one_epoch(epoch):
    model.train()
    metric_logger = MetricLogger()
    warmup = None
    if epoch == 0:
        warmup_iters = min(1000, len(loader) - 1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warmup_iters)
    for ids, rows, kinds in metric_logger.log_every(loader, 10, f"Epoch: [{epoch}]"):
        diary.moment("step")
        loss_dict = model(rows, kinds)
        losses = sum(loss_dict.values())
        diary.saw(state.step, losses, ids, optimizer.param_groups[0]["lr"])
        metric_logger.update(**reduce_dict(loss_dict))
        optimizer.zero_grad()
        losses.backward()
        diary.moment("backward")
        optimizer.step()
        if warmup is not None:
            warmup.step()
        lr_scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")
    return metric_logger


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        train_one_epoch(epoch)
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, lr_scheduler, step=state.step)
diary.leave()
