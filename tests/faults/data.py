"""The batches of `tests.faults.program`: from memory, or from a data loader that may get stuck."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tests.faults.plan import Plan

BLOCKING = ("data", "orphan")
"""Faults in which a process of the victim's data loader gets stuck."""


class Batches(Dataset[Tensor]):
    """One batch a step. From `blocked_from` on, each lies on a file server that does not answer: a pipe here."""

    def __init__(self, width: int, pipe: Path, blocked_from: int | None) -> None:
        self.width, self.pipe, self.blocked_from = width, pipe, blocked_from

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        if self.blocked_from is not None and index >= self.blocked_from:
            os.open(self.pipe, os.O_RDONLY)  # no process ever opens its other end
        return torch.randn(4, self.width, generator=torch.Generator().manual_seed(index))


class Source:
    """The batches of one rank."""

    def __init__(self, plan: Plan, rank: int, width: int) -> None:
        pipe = plan.path("pipe")
        self._loads = plan.fault in BLOCKING and rank in plan.victims
        blocks = self._loads and not plan.has_struck(rank)
        if blocks and not pipe.exists():
            os.mkfifo(pipe)
        self._batches = Batches(width, pipe, plan.at - 1 if blocks else None)
        if not self._loads:
            return
        self._loader = iter(DataLoader(self._batches, batch_size=None, num_workers=1, generator=torch.Generator()))
        if blocks:
            workers: Any = self._loader
            plan.note(f"children-{rank}", json.dumps([worker.pid for worker in workers._workers]))

    def next(self, step: int) -> Tensor:
        """Return the batch of a step."""
        return next(self._loader) if self._loads else self._batches[step]
