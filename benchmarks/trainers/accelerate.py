"""accelerate: a loop, with one accelerator under taskd and another one without it."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import taskd.accelerate
from benchmarks.trainers.epochs import EpochTurns
from benchmarks.trainers.work import ROWS, Network, Rows, Stopwatch


class _Loop:
    def __init__(self, watch: Stopwatch, steps: int) -> None:
        self.accelerator = Accelerator(cpu=True)
        model = Network(watch)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loader = DataLoader(Rows(2 * steps), batch_size=ROWS, shuffle=True)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )

    def train(self, epochs: Any, state: Any) -> None:
        for _ in epochs:
            for rows, kinds in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = torch.nn.functional.cross_entropy(self.model(rows), kinds)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                if state is not None:
                    state.commit()


class AccelerateTurns(EpochTurns):
    """Turns of two accelerators."""

    def __init__(self, watch: Stopwatch, _folder: str, steps: int) -> None:
        plain, ours = _Loop(watch, steps), _Loop(watch, steps)
        super().__init__(watch, plain, ours, taskd.accelerate.prepare(ours.accelerator, ours.loader))
