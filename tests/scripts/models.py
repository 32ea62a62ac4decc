"""Models and data of the scripts. They are small, so that a step takes a millisecond."""

import torch
from torch import nn
from torch.utils.data import Dataset

ROWS = 96
WIDTH = 16
KINDS = 4


class Rows(Dataset):
    """Random rows with a kind each, always the same for a seed. The number of a row comes with it."""

    def __init__(self, rows: int = ROWS, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(rows, WIDTH, generator=generator)
        self.kinds = torch.randint(KINDS, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        return index, self.rows[index], self.kinds[index]


class Noisy(Rows):
    """Rows with noise that is drawn when they are read, as in augmentation."""

    def __getitem__(self, index):
        number, row, kind = super().__getitem__(index)
        return number, row + 0.01 * torch.randn(WIDTH), kind


def network(dropout: float = 0.2) -> nn.Sequential:
    """Return a network from a row to a score for each kind."""
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Dropout(dropout), nn.Linear(24, KINDS))


def batch_of(step: int, share: int, shares: int, size: int = 4):
    """Return the rows of one share of a step, as a function of step and share."""
    rows = Rows()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step))
    chosen = order[share * size : (share + 1) * size] % len(rows)
    del shares
    return chosen, rows.rows[chosen], rows.kinds[chosen]
