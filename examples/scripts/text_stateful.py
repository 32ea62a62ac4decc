"""Character model of Python's own texts, data parallel, over torchdata's StatefulDataLoader.

taskd run --nproc-per-node 2 examples/scripts/text_stateful.py
"""

import pydoc_data.topics
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd

LENGTH = 24
EPOCHS = 4


class Windows(Dataset):
    """Pieces of a text, with the next character for each character."""

    def __init__(self, text):
        letters = sorted(set(text))
        self.letters = len(letters)
        number = {letter: index for index, letter in enumerate(letters)}
        self.codes = torch.tensor([number[letter] for letter in text])

    def __len__(self):
        return (len(self.codes) - 1) // LENGTH

    def __getitem__(self, index):
        piece = self.codes[index * LENGTH : (index + 1) * LENGTH + 1]
        return piece[:-1], piece[1:]


class Letters(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.embed = nn.Embedding(letters, 24)
        self.memory = nn.GRU(24, 48, batch_first=True)
        self.score = nn.Linear(48, letters)

    def forward(self, codes):
        return self.score(self.memory(self.embed(codes))[0])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = "\n".join(pydoc_data.topics.topics[name] for name in ("for", "while", "if", "with"))
    data = Windows(text)
    sampler = DistributedSampler(data, seed=2)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Letters(data.letters))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    random.seed(dist.get_rank())
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler)

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for given, wanted in loader:
                hidden = random.randrange(LENGTH)  # one letter is hidden, a different one on each rank
                shown = given.clone()
                shown[:, hidden] = 0
                optimizer.zero_grad()
                loss = cross_entropy(model(shown).flatten(0, 1), wanted.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if dist.get_rank() == 0 and (state.step + 1) % 10 == 0:
                    print(f"epoch {epoch} step {state.step + 1} loss {loss.item():.4f}", flush=True)
                state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
