"""Lightning with loaders that the module makes anew in each epoch, evaluations in every second one, and a last step."""

import lightning as L  # noqa: N812 - as its documentation does
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts import diary
from tests.trainers.programs import moments


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        told = load_digits()
        self.rows = torch.tensor(told.data, dtype=torch.float32) / 16
        self.kinds = torch.tensor(told.target)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 10))

    def train_dataloader(self):
        begin = 100 * self.current_epoch
        part = TensorDataset(self.rows[begin : begin + 200], self.kinds[begin : begin + 200])
        return DataLoader(part, batch_size=20, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.rows[1500:1580], self.kinds[1500:1580]), batch_size=20)

    def training_step(self, batch, batch_idx):
        moments.at(self.trainer.global_step + 1)
        moments.moment("forward")
        x, y = batch
        logits = self.net(x)
        logits.register_hook(moments.into_backward)
        loss = torch.nn.functional.cross_entropy(logits.float(), y)
        self.log("loss", loss, on_epoch=True, on_step=True, sync_dist=True)
        diary.saw(self.trainer.global_step, loss, x.sum())
        return loss

    def validation_step(self, batch, batch_idx):
        moments.moment("validation")
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]).float(), batch[1])
        self.log("valid_loss", loss, sync_dist=True)

    def on_train_epoch_start(self):
        moments.moment("epoch start")

    def on_train_end(self):
        moments.moment("train end")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def strategy():
    if moments.PLAIN:
        return "ddp"
    from taskd.lightning import TaskdDDPStrategy

    return TaskdDDPStrategy()


def main() -> None:
    L.seed_everything(3)
    folder = diary.FOLDER / "out"
    best = ModelCheckpoint(folder / "best", monitor="valid_loss", save_last="link", every_n_epochs=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=4)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy(), max_steps=22, logger=CSVLogger(folder, name="log"),
        log_every_n_steps=3, reload_dataloaders_every_n_epochs=1, check_val_every_n_epoch=2, num_sanity_val_steps=0,
        callbacks=[best, EarlyStopping("valid_loss", patience=9)], enable_progress_bar=False, default_root_dir=folder,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)], sync_batchnorm=False,
    )  # fmt: skip
    model = Digits()
    trainer.fit(model)
    if trainer.is_global_zero:
        lines = (folder / "log" / "version_0" / "metrics.csv").read_text().splitlines()
        for number, line in enumerate(lines):
            moments.logged(number, line)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            moments.logged(0, str(path.relative_to(folder)))
    diary.finish(
        model.net,
        trainer.optimizers[0],
        scaler,
        metrics=[f"{name} {value.item()}" for name, value in sorted(trainer.callback_metrics.items())],
        counts=[trainer.global_step, trainer.current_epoch],
        best=str(best.best_model_score),
    )


main()
