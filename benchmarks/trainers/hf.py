"""Hugging Face's Trainer: each turn is a trainer's `train()`."""

from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from benchmarks.trainers.work import Network, Rows, Stopwatch, Turn
from taskd.hf import TaskdCallback, resilient


class _Texts(Rows):
    def __getitem__(self, index: int) -> Any:
        rows, kinds = super().__getitem__(index)
        return {"rows": rows, "labels": kinds}


class _Model(torch.nn.Module):
    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.network = Network(watch)

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(rows)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class HfTurns:
    """Turns with a new trainer for each. `folder` is the trainers' output folder."""

    def __init__(self, watch: Stopwatch, folder: str, steps: int) -> None:
        self._watch, self._folder, self._steps = watch, folder, steps
        self._model, self._data = _Model(watch), _Texts(2 * steps)

    def __call__(self, *, ours: bool) -> Turn:
        """Train for one turn, with taskd if `ours`."""
        arguments = TrainingArguments(
            output_dir=self._folder,
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=8,
            num_train_epochs=1,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=50,
        )
        callbacks: Any = [TaskdCallback()] if ours else []
        trainer = Trainer(model=self._model, args=arguments, train_dataset=self._data, callbacks=callbacks)
        turn = self._watch.begin()
        if ours:
            with resilient(trainer):
                trainer.train()
        else:
            trainer.train()
        return turn
