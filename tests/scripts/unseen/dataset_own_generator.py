"""Augmentation as a list of transforms that draw from a generator of their own, seeded once; read in
the main process.
"""

import random

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class Flip:
    def __call__(self, row, numbers):
        return row.flip(0) if numbers.random() < 0.3 else row


class Brightness:
    def __call__(self, row, numbers):
        return row * numbers.uniform(0.8, 1.2)


class CoarseDropout:
    def __call__(self, row, numbers):
        at = numbers.randrange(len(row))
        row = row.clone()
        row[at : at + 3] = 0
        return row


class Compose:
    def __init__(self, transforms, seed):
        self.transforms, self.numbers = transforms, random.Random(seed)

    def __call__(self, row):
        for transform in self.transforms:
            row = transform(row, self.numbers)
        return row


class Augmented(Dataset):
    def __init__(self, rows, transform):
        self.rows, self.transform = rows, transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        number, row, kind = self.rows[index]
        return number, self.transform(row), kind


def main():
    dist.init_process_group("gloo")
    diary.moment("setup")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    transform = Compose([Flip(), Brightness(), CoarseDropout()], seed=137 + dist.get_rank())
    data = Augmented(Rows(), transform)
    sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=EPOCHS * len(loader), power=0.9)
    state = taskd.TrainState(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, sampler=sampler, seed=1
    )
    diary.moment("setup done")

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for ids, rows, kinds in loader:
                diary.moment("step")
                loss = cross_entropy(model(rows), kinds)
                diary.saw(state.step, loss, ids)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                diary.moment("backward")
                optimizer.step()
                diary.moment("stepped")
                scheduler.step()
                state.commit()
                diary.moment("committed")
            diary.moment("epoch done")

    train()
    diary.moment("after")
    diary.finish(model, optimizer, scheduler, step=state.step)
    diary.leave()


if __name__ == "__main__":
    main()
