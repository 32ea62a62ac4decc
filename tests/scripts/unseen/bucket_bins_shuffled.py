"""Speech in bins of about the same length: the sampler's bins are shuffled for each epoch, seeded with its number."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

import taskd
from tests.scripts import diary

EPOCHS, KINDS, FEATURES = 4, 3, 6


class Utterances(Dataset):
    """Sorted by length."""

    def __init__(self, number=96):
        generator = torch.Generator().manual_seed(21)
        lengths = torch.randint(3, 14, (number,), generator=generator).sort().values
        self.frames = [torch.randn(int(length), FEATURES, generator=generator) for length in lengths]
        self.kinds = torch.randint(KINDS, (number,), generator=generator)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return index, self.frames[index], self.kinds[index]


class DistributedBucketingSampler(Sampler):
    def __init__(self, data, batch_size, rank, world):
        ids = list(range(len(data)))
        self.bins = [ids[at : at + batch_size] for at in range(0, len(ids), batch_size)]
        self.rank, self.world = rank, world

    def __iter__(self):
        return iter(self.bins[self.rank :: self.world])

    def __len__(self):
        return len(self.bins) // self.world

    def shuffle(self, epoch):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(self.bins), generator=generator).tolist()
        self.bins = [self.bins[number] for number in order]


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(FEATURES, 12, batch_first=True)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(12, KINDS)

    def forward(self, frames, lengths):
        _, last = self.rnn(pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False))
        return self.out(self.drop(last[-1]))


def collate(samples):
    ids, frames, kinds = zip(*samples, strict=True)
    lengths = torch.tensor([len(frame) for frame in frames])
    return list(ids), pad_sequence(frames, batch_first=True), lengths, torch.stack(kinds)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(123456)
model = DistributedDataParallel(Recogniser())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
data = Utterances()
sampler = DistributedBucketingSampler(data, 4, dist.get_rank(), dist.get_world_size())
loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        if epoch > 0:
            sampler.shuffle(epoch)
        for ids, frames, lengths, kinds in loader:
            diary.moment("step")
            loss = cross_entropy(model(frames, lengths), kinds)
            diary.saw(state.step, loss, ids)
            optimizer.zero_grad()
            loss.backward()
            diary.moment("backward")
            nn.utils.clip_grad_norm_(model.parameters(), 4.0)
            optimizer.step()
            scheduler.step()
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
