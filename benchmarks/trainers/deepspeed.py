"""DeepSpeed, ZeRO 1: a loop, with one engine under taskd and another one without it."""

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")

import taskd.deepspeed  # isort: skip - before deepspeed.initialize
import deepspeed
import torch

from benchmarks.trainers.epochs import EpochTurns
from benchmarks.trainers.work import ROWS, Network, Rows, Stopwatch

_CONFIG = {
    "train_micro_batch_size_per_gpu": ROWS,
    "steps_per_print": 10_000,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 6}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


class _Loop:
    def __init__(self, watch: Stopwatch, steps: int) -> None:
        model = Network(watch)
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=_CONFIG)
        self.loader = self.engine.deepspeed_io(Rows(2 * steps), num_local_io_workers=0)

    def train(self, epochs: Any, state: Any) -> None:
        for _ in epochs:
            for rows, kinds in self.loader:
                loss = torch.nn.functional.cross_entropy(self.engine(rows), kinds)
                self.engine.backward(loss)
                self.engine.step()
                if state is not None:
                    state.commit()


class DeepspeedTurns(EpochTurns):
    """Turns of two engines."""

    def __init__(self, watch: Stopwatch, _folder: str, steps: int) -> None:
        deepspeed.init_distributed("gloo")
        plain, ours = _Loop(watch, steps), _Loop(watch, steps)
        super().__init__(watch, plain, ours, taskd.deepspeed.state(ours.engine, loader=ours.loader, backup_every=0))
