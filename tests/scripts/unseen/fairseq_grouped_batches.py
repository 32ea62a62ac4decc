"""fairseq's loop: batches by their tokens, some of them for an update, another number in each epoch,
gradients by token.
"""

from contextlib import nullcontext
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

import taskd
from tests.scripts import diary

UPDATE_FREQ = (1, 2, 3)
WORDS, PAD, MAX_TOKENS = 30, 0, 36


class Sentences(Dataset):
    def __init__(self, number=180):
        numbers = np.random.RandomState(3)
        self.sentences = [torch.from_numpy(numbers.randint(1, WORDS, numbers.randint(4, 13))) for _ in range(number)]
        self.sizes = [len(sentence) for sentence in self.sentences]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return index, self.sentences[index]


class TokenBatches(Sampler):
    """This rank's batches of an epoch: sentences of about the same length, not more than so many tokens."""

    def __init__(self, sizes, rank, world, seed=11):
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0
        self.batches, batch = [], []
        for index in np.argsort(sizes, kind="stable").tolist():
            if batch and (len(batch) + 1) * sizes[index] > MAX_TOKENS:
                self.batches.append(batch)
                batch = []
            batch.append(index)
        self.batches.append(batch)
        del self.batches[len(self.batches) // world * world :]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.random.RandomState(self.seed + self.epoch).permutation(len(self.batches))
        return iter([self.batches[number] for number in order[self.rank :: self.world]])

    def __len__(self):
        return len(self.batches) // self.world


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 12, padding_idx=PAD)
        self.rnn = nn.GRU(12, 16, batch_first=True)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(16, WORDS)

    def forward(self, words):
        return self.out(self.drop(self.rnn(self.embed(words))[0]))


def collate(samples):
    ids, sentences = zip(*samples, strict=True)
    return list(ids), pad_sequence(sentences, batch_first=True, padding_value=PAD)


def inverse_sqrt(update, warmup=8):
    return (update + 1) / warmup if update < warmup else (warmup / (update + 1)) ** 0.5


dist.init_process_group("gloo")
diary.moment("setup")
world = dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, inverse_sqrt)
sentences = Sentences()
batches = TokenBatches(sentences.sizes, dist.get_rank(), world)
loader = DataLoader(sentences, batch_sampler=batches, collate_fn=collate)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=1)
diary.moment("setup done")


def train_step(samples):
    diary.moment("step")
    optimizer.zero_grad()
    logged = torch.zeros(2)
    for number, (ids, words) in enumerate(samples):
        with model.no_sync() if number < len(samples) - 1 else nullcontext():
            scores, targets = model(words[:, :-1]), words[:, 1:]
            loss = cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
            loss.backward()
        diary.saw((state.step, number), loss, ids)
        diary.moment("backward")
        logged += torch.stack((loss.detach(), (targets != PAD).sum()))
    dist.all_reduce(logged)
    for parameter in model.parameters():
        parameter.grad.mul_(world / logged[1])
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    scheduler.step()
    diary.moment("stepped")
    state.commit()
    diary.moment("committed")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(len(UPDATE_FREQ)):
        batches.set_epoch(epoch)
        itr = iter(loader)
        while samples := list(islice(itr, UPDATE_FREQ[epoch])):
            train_step(samples)
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
