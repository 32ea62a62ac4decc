"""The model of the attacked job."""

from typing import Final

import torch

MARK: Final = b"taskd: what no stranger may read"
"""Part of the state of a job whose copies are attacked."""


class Net(torch.nn.Module):
    """A model that counts the steps in which it has learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.register_buffer("learnt", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def make() -> tuple[Net, torch.optim.Optimizer]:
    """Return the model at the start of training, and its optimizer."""
    torch.manual_seed(5)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.05)
