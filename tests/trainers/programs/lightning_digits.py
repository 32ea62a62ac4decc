"""Lightning, as its documentation teaches it: accumulated gradients, evaluations in an epoch, checkpoints, a log."""

import os

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts import diary
from tests.trainers.programs import moments, place

if os.environ.get("SCENE_PACKAGE") == "pytorch_lightning":
    import pytorch_lightning as L  # noqa: N812 - as its documentation does
    from pytorch_lightning.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
    from pytorch_lightning.loggers import CSVLogger
else:
    import lightning as L  # noqa: N812 - as its documentation does
    from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
import torchmetrics

ACCUMULATE = 2


class Digits(L.LightningModule):
    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
        )
        self.train_accuracy = torchmetrics.classification.MulticlassAccuracy(10)
        self.valid_accuracy = torchmetrics.classification.MulticlassAccuracy(10)
        self.losses: list[torch.Tensor] = []
        self.batches_ended = 0

    def training_step(self, batch, batch_idx):
        moments.at(self.trainer.global_step + 1)
        moments.moment("forward")
        x, y = batch
        logits = self.net(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        logits.register_hook(moments.into_backward)
        self.train_accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("loss_of_all", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        self.losses.append(loss.detach())
        diary.saw(f"{self.trainer.global_step} {batch_idx}", loss, x.sum())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.batches_ended += 1
        self.log("sum_of_batch", batch[0].sum(), on_step=False, on_epoch=True)
        diary.saw(f"end {self.trainer.global_step} {batch_idx}", outputs["loss"], batch[0].sum())
        moments.moment("batch end")

    def validation_step(self, batch, batch_idx):
        moments.moment("validation")
        x, y = batch
        logits = self.net(x)
        self.valid_accuracy(logits, y)
        self.log("valid_loss", torch.nn.functional.cross_entropy(logits, y), sync_dist=True)
        self.log("valid_accuracy", self.valid_accuracy)

    def on_train_epoch_end(self):
        moments.moment("epoch end")
        mean = torch.stack(self.losses).mean()
        self.log("mean_of_losses", mean)
        self.losses.clear()
        diary.saw(f"epoch {self.current_epoch}", mean)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        kind = self.hparams.scheduler
        if kind == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
            config = {"scheduler": plateau, "monitor": "valid_loss", "interval": "epoch", "strict": False}
        else:
            step = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3 if kind == "step" else 1, gamma=0.9)
            config = {"scheduler": step, "interval": kind}
        return {"optimizer": optimizer, "lr_scheduler": config}


class Telling(Callback):
    """Records the loggers' values, and counts."""

    def __init__(self) -> None:
        self.batches = self.evaluations = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches += 1

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.evaluations += 1
            metrics = {name: value.item() for name, value in sorted(trainer.callback_metrics.items())}
            diary.saw(f"metrics {trainer.global_step}", str(metrics))

    def on_exception(self, trainer, module, exception):
        moments.logged(trainer.global_step, f"on_exception {type(exception).__name__}")


class Checkpoints(ModelCheckpoint):
    """A checkpoint with a moment in the middle of its writing."""

    def _save_checkpoint(self, trainer, filepath):
        moments.moment("checkpoint")
        super()._save_checkpoint(trainer, filepath)
        moments.moment("checkpoint written")


def strategy():
    if moments.PLAIN:
        return "ddp"
    from taskd.lightning import TaskdDDPStrategy

    return TaskdDDPStrategy()


def main() -> None:
    L.seed_everything(3)
    told = load_digits()
    x, y = torch.tensor(told.data, dtype=torch.float32) / 16, torch.tensor(told.target)
    workers = int(os.environ.get("SCENE_WORKERS", "0"))
    train = DataLoader(TensorDataset(x[:480], y[:480]), batch_size=20, shuffle=True, num_workers=workers)
    valid = DataLoader(TensorDataset(x[1500:1600], y[1500:1600]), batch_size=20)
    kind = os.environ.get("SCENE_SCHEDULER", "step")
    folder = diary.FOLDER / "out"
    logger = CSVLogger(folder, name="log")
    best = Checkpoints(folder / "best", monitor="valid_loss", save_top_k=2, save_last=True)
    often = Checkpoints(folder / "often", every_n_train_steps=4, save_top_k=-1)
    stopping = EarlyStopping("valid_loss", patience=50)
    telling = Telling()
    monitor = LearningRateMonitor("step")
    trainer = L.Trainer(
        accelerator="cpu" if place.ON_CPU else "gpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=2 // int(os.environ["LOCAL_WORLD_SIZE"]), strategy=strategy(), max_epochs=2,
        accumulate_grad_batches=ACCUMULATE, gradient_clip_val=0.5,
        precision=os.environ.get("SCENE_PRECISION", "32-true"), logger=logger,
        val_check_interval=6, log_every_n_steps=1, callbacks=[best, often, stopping, telling, monitor],
        default_root_dir=folder, deterministic=True,
    )  # fmt: skip
    model = Digits(kind)
    trainer.fit(model, train, valid)
    if trainer.is_global_zero:
        lines = (folder / "log" / "version_0" / "metrics.csv").read_text().splitlines()
        for number, line in enumerate(lines):
            moments.logged(number, line)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            moments.logged(0, str(path.relative_to(folder)))
    diary.finish(
        model,
        trainer.optimizers[0],
        metrics=[f"{name} {value.item()}" for name, value in sorted(trainer.callback_metrics.items())],
        counts=[telling.batches, telling.evaluations, model.batches_ended, trainer.global_step, stopping.wait_count],
        best=[
            str(best.best_model_score),
            *(os.path.basename(path) for path in (best.best_model_path, best.last_model_path)),
        ],
        rates=[group["lr"] for group in trainer.optimizers[0].param_groups],
    )


main()
