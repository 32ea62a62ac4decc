"""Lightning with FSDP2 (`ModelParallelStrategy`), on one dimension: each rank has a part that no other has."""

import lightning as L  # noqa: N812 - as its documentation does
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts import diary
from tests.trainers.programs import moments


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        fully_shard(self.net[0], mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, batch, batch_idx):
        moments.at(self.trainer.global_step + 1)
        moments.moment("forward")
        x, y = batch
        logits = self.net(x)
        logits.register_hook(moments.into_backward)
        loss = torch.nn.functional.cross_entropy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        diary.saw(self.trainer.global_step, loss, x.sum())
        return loss

    def validation_step(self, batch, batch_idx):
        moments.moment("validation")
        self.log("valid_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def strategy():
    if moments.PLAIN:
        from lightning.pytorch.strategies import ModelParallelStrategy

        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    from taskd.lightning import TaskdModelParallelStrategy

    return TaskdModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)


def main() -> None:
    L.seed_everything(3)
    told = load_digits()
    x, y = torch.tensor(told.data, dtype=torch.float32) / 16, torch.tensor(told.target)
    train = DataLoader(TensorDataset(x[:480], y[:480]), batch_size=20, shuffle=True)
    valid = DataLoader(TensorDataset(x[1500:1600], y[1500:1600]), batch_size=20)
    folder = diary.FOLDER / "out"
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy(), max_epochs=2, logger=CSVLogger(folder, name="log"),
        log_every_n_steps=1, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=folder,
    )  # fmt: skip
    model = Digits()
    trainer.fit(model, train, valid)
    if trainer.is_global_zero:
        lines = (folder / "log" / "version_0" / "metrics.csv").read_text().splitlines()
        for number, line in enumerate(lines):
            moments.logged(number, line)
    diary.finish(
        model.net,
        metrics=[f"{name} {value.item()}" for name, value in sorted(trainer.callback_metrics.items())],
        counts=[trainer.global_step],
    )


main()
