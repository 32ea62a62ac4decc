"""DeepSpeed, ZeRO 1: a loop, with one engine that taskd knows and another that it does not."""

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")

import taskd

import taskd.deepspeed  # isort: skip - before deepspeed.initialize
import deepspeed
import torch

from benchmarks.trainers.work import ROWS, Network, Rows, Stopwatch, Turn

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


class DeepspeedTurns:
    """Each turn is an epoch."""

    def __init__(self, watch: Stopwatch, _folder: str, steps: int) -> None:
        deepspeed.init_distributed("gloo")
        self._watch = watch
        self._plain, self._ours = _Loop(watch, steps), _Loop(watch, steps)
        self._turns = 0
        self._state = taskd.deepspeed.state(self._ours.engine, loader=self._ours.loader, backup_every=0)

    def __call__(self, *, ours: bool) -> Turn:
        """Train once; `ours` with taskd."""
        turn = self._watch.begin()
        if ours:
            state = self._state
            self._turns += 1  # epochs are counted on
            taskd.resilient(state)(lambda: self._ours.train(state.epochs(self._turns), state))()
        else:
            self._plain.train(range(1), None)
        return turn
