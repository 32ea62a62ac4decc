"""Lightning with manual optimization: a GAN on digits, two optimizers, losses logged at the end of the step."""

import lightning as L  # noqa: N812 - as its documentation does
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts import diary
from tests.trainers.programs import moments


class Gan(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
        self.critic = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.LeakyReLU(0.2), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
        )
        self.seen = 0

    def judge(self, images, real):
        logits = self.critic(images)
        return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch, batch_idx):
        moments.at(self.trainer.global_step // 2 + 1)
        real = batch[0]
        of_generator, of_critic = self.optimizers()
        self.toggle_optimizer(of_critic)
        made = self.generator(torch.randn(len(real), 8))
        loss_of_critic = (self.judge(real, True) + self.judge(made.detach(), False)) / 2
        of_critic.zero_grad()
        moments.moment("critic")
        self.manual_backward(loss_of_critic)
        of_critic.step()
        self.untoggle_optimizer(of_critic)
        moments.moment("critic stepped")
        self.toggle_optimizer(of_generator)
        loss_of_generator = self.judge(self.generator(torch.randn(len(real), 8)), True)
        of_generator.zero_grad()
        moments.moment("generator")
        self.manual_backward(loss_of_generator)
        of_generator.step()
        self.untoggle_optimizer(of_generator)
        self.seen += len(real)
        self.log_dict({"critic": loss_of_critic, "generator": loss_of_generator}, prog_bar=True, on_epoch=True)
        diary.saw(self.trainer.global_step, loss_of_critic, loss_of_generator, real.sum())
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def on_validation_epoch_start(self):
        moments.moment("validation")
        with torch.no_grad():
            self.log("real", self.critic(self.generator(torch.randn(16, 8))).mean(), sync_dist=True)

    def validation_step(self, batch, batch_idx):
        self.log("judged", self.judge(batch[0], True), sync_dist=True)

    def configure_optimizers(self):
        both = [torch.optim.Adam(part.parameters(), lr=2e-3) for part in (self.generator, self.critic)]
        return both, [torch.optim.lr_scheduler.ExponentialLR(one, 0.99) for one in both]


def strategy():
    if moments.PLAIN:
        return "ddp_find_unused_parameters_true"
    from taskd.lightning import TaskdDDPStrategy

    return TaskdDDPStrategy(find_unused_parameters=True)


def main() -> None:
    L.seed_everything(5)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    train = DataLoader(TensorDataset(x[:400]), batch_size=20, shuffle=True)
    valid = DataLoader(TensorDataset(x[400:440]), batch_size=20)
    folder = diary.FOLDER / "out"
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy(), max_epochs=2, logger=CSVLogger(folder, name="log"),
        log_every_n_steps=2, enable_progress_bar=False, default_root_dir=folder, num_sanity_val_steps=0,
    )  # fmt: skip
    model = Gan()
    trainer.fit(model, train, valid)
    if trainer.is_global_zero:
        lines = (folder / "log" / "version_0" / "metrics.csv").read_text().splitlines()
        for number, line in enumerate(lines):
            moments.logged(number, line)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            moments.logged(0, str(path.relative_to(folder)))
    diary.finish(
        model,
        *trainer.optimizers,
        metrics=[f"{name} {value.item()}" for name, value in sorted(trainer.callback_metrics.items())],
        counts=[model.seen, trainer.global_step],
    )


main()
