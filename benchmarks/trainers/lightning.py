"""PyTorch Lightning: each turn is a trainer's `fit`."""

from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from benchmarks.trainers.work import ROWS, Network, Rows, Stopwatch, Turn
from taskd.lightning import TaskdDDPStrategy


class _Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.network = Network(watch)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, kinds = batch
        loss = torch.nn.functional.cross_entropy(self.network(rows), kinds)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class LightningTurns:
    """Turns with a new trainer for each. `folder` is the trainers' root folder."""

    def __init__(self, watch: Stopwatch, folder: str, steps: int) -> None:
        self._watch, self._folder = watch, folder
        self._module = _Module(watch)
        self._loader = DataLoader(Rows(2 * steps), batch_size=ROWS, shuffle=True)

    def __call__(self, *, ours: bool) -> Turn:
        """Train for one turn, with taskd if `ours`."""
        kind: Any = TaskdDDPStrategy if ours else DDPStrategy
        trainer = lightning.Trainer(
            strategy=kind(process_group_backend="gloo"),
            accelerator="cpu",
            devices=2,
            max_epochs=1,
            default_root_dir=self._folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        turn = self._watch.begin()
        trainer.fit(self._module, self._loader)
        return turn
