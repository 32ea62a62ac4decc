"""The Lightning adapter with Lightning itself, in one process: state is kept of a trainer, and given to another."""

import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from taskd.adaptors.trainers.library import misfit
from taskd.adaptors.trainers.lightning.batches import Handed, kept
from taskd.adaptors.trainers.lightning.kept import Keeper
from taskd.adaptors.trainers.lightning.library import Library
from taskd.adaptors.trainers.lightning.parts import parts_of, stands_till_commit, uses_batch
from taskd.adaptors.trainers.lightning.seams import table
from taskd.adaptors.trainers.lightning.strategies import recovering
from taskd.adaptors.trainers.lightning.writing import Files, Lines
from taskd.adaptors.trainers.marks import Marks
from taskd.errors import ConfigError

PACKAGES = ("lightning", "pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=PACKAGES)
def library(request: pytest.FixtureRequest) -> Library:
    pytest.importorskip(request.param)
    return Library(request.param)


def module_of(library: Library) -> Any:
    metrics = importlib.import_module("torchmetrics.classification")

    class Module(library.module("").LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 2)
            self.accuracy = metrics.MulticlassAccuracy(2)
            self.losses: list[torch.Tensor] = []
            self.seen = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.net(batch[0])
            loss = torch.nn.functional.cross_entropy(logits, batch[1])
            self.accuracy(logits, batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            self.log("highest", loss, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
            self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
            self.losses.append(loss.detach())
            self.seen += 1
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


class Looking:
    """A callback that inspects the trainer at the end of some batch, and may stop there."""

    def __init__(self, at: int, look: Any) -> None:
        self.at, self.look = at, look
        self.batches = 0


def callback_of(library: Library, at: int, look: Any) -> Any:
    class LookingCallback(Looking, library.module("callbacks").Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.batches += 1
            if batch_idx == self.at:
                self.look(trainer)

    return LookingCallback(at, look)


def fit(library: Library, folder: Path, at: int, look: Any) -> None:
    torch.manual_seed(1)
    rows = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
    callbacks = [callback_of(library, at, look), library.module("callbacks").EarlyStopping("loss")]
    trainer = library.module("").Trainer(
        accelerator="cpu", devices=1, max_epochs=1, callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module_of(library), DataLoader(rows, batch_size=4))


def keeper_of(trainer: Any, library: Library) -> Keeper:
    fetcher = trainer.fit_loop._data_fetcher
    kind: Any = type(fetcher)
    fetcher.__class__ = kept(kind)
    fetcher.taskd = Handed()
    fetcher.taskd.begin(fetcher.combined_loader.flattened)
    marks = Marks(None, anew=True)
    return Keeper(trainer, library, Lines(trainer.loggers, marks), Files(trainer.callbacks, marks))


def seen_of(trainer: Any) -> Any:
    sums = {
        key: (one.value if one.is_tensor else one.value.compute(), one.has_reset, repr(one.meta.sync.op))
        for key, one in trainer.fit_loop.epoch_loop._results.items()
    }
    module = trainer.lightning_module
    return repr(
        (sums, trainer.fit_loop.state_dict(), module.losses, module.seen, module.accuracy.metric_state,
         trainer._logger_connector._callback_metrics, trainer.callbacks[0].batches)
    )  # fmt: skip


def test_it_fits(library: Library) -> None:
    assert not misfit(library.package, table(library))


def test_what_a_later_one_may_change_is_told(library: Library) -> None:
    class Later(Library):
        root = "torch"

    later = Later(library.package)
    later.root = "torch"
    assert "found no" in misfit(library.package, table(later))


def test_a_picture_is_put_back(library: Library, tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def look(trainer: Any) -> None:
        keeps = keeper_of(trainer, library)
        before = seen_of(trainer)
        picture = keeps.take(committed=True)
        trainer.lightning_module.losses.clear()
        trainer.lightning_module.seen = 0
        trainer.callbacks[0].batches = -1
        trainer.fit_loop.epoch_loop.batch_progress.increment_ready()
        trainer.lightning_module.accuracy.reset()
        trainer._logger_connector.reset_results()
        trainer._logger_connector._callback_metrics.clear()
        assert seen_of(trainer) != before
        keeps.put(picture)
        found.update(before=before, after=seen_of(trainer))
        keeps.lines.end()
        keeps.files.end()

    fit(library, tmp_path, 3, look)
    assert found["after"] == found["before"]


def test_another_process_goes_on_where_one_stood(library: Library, tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def give(trainer: Any) -> None:
        found["seen"] = seen_of(trainer)
        own, common = found["keeps"].own(), found["keeps"].common(found["keeps"].take(committed=True))
        found.update(own=own, common=msgspec.msgpack.decode(msgspec.msgpack.encode(common)))

    def begin(trainer: Any) -> None:
        found["keeps"] = keeper_of(trainer, library)
        trainer.callbacks[0].at, trainer.callbacks[0].look = 3, give

    def take_over(trainer: Any) -> None:
        keeps = keeper_of(trainer, library)
        trainer.fit_loop.epoch_loop._results.clear()
        keeps.put_common(found["common"])
        keeps.put_own(found["own"])
        found["seen there"] = seen_of(trainer)

    fit(library, tmp_path, 0, begin)
    fit(library, tmp_path, 0, take_over)
    assert found["seen there"] == found["seen"]


def test_hooks_that_look_at_the_batch_are_known(library: Library, tmp_path: Path) -> None:
    found = []
    fit(library, tmp_path, 0, lambda trainer: found.append(uses_batch(trainer, library)))
    trainer = library.module("").Trainer(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    trainer.strategy._lightning_module = module_of(library)
    assert found == [True]
    assert not uses_batch(trainer, library)


def test_hooks_between_a_training_step_and_its_commit_are_known(library: Library, tmp_path: Path) -> None:
    def stands(module: Any, *callbacks: Any) -> bool:
        trainer = library.module("").Trainer(
            accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path, callbacks=[*callbacks]
        )
        trainer.strategy._lightning_module = module
        return stands_till_commit(trainer, library)

    module, manual = module_of(library), module_of(library)
    manual.automatic_optimization = False
    hears = type(module)()
    hears.on_after_backward = hears.losses.clear
    callback = library.module("callbacks").LambdaCallback(on_before_zero_grad=lambda *_: None)
    assert stands(module)
    assert stands(module, callback_of(library, 0, print))
    assert not stands(module, callback)
    assert not stands(hears)
    assert not stands(manual)


def test_what_cannot_be_given_to_a_new_process_is_refused_by_name(library: Library, tmp_path: Path) -> None:
    found = []

    def look(trainer: Any) -> None:
        assert sorted(name for name, part in parts_of(trainer, library).items() if part) == ["model", "optimizer_0"]
        trainer.callbacks[0].average = torch.nn.Linear(1, 1)
        with pytest.raises(ConfigError, match="LookingCallback has a Linear of its own, average"):
            parts_of(trainer, library)
        del trainer.callbacks[0].average
        trainer.strategy._optimizers = []
        with pytest.raises(ConfigError, match="no optimizer"):
            parts_of(trainer, library)
        found.append(trainer)
        trainer.strategy._optimizers = [torch.optim.SGD(trainer.lightning_module.parameters(), lr=0.1)]

    fit(library, tmp_path, 0, look)
    assert found


def test_without_an_agent_a_strategy_is_lightnings(library: Library, tmp_path: Path) -> None:
    kind = recovering(library.module("strategies").DDPStrategy, "Mine", "doc", library)
    strategy = kind(process_group_backend="gloo")
    assert isinstance(strategy, library.module("strategies").DDPStrategy)
    assert strategy._taskd_runtime is None
    assert kind.__name__ == "Mine"
    trainer = library.module("").Trainer(accelerator="cpu", devices=1, strategy=strategy, default_root_dir=tmp_path)
    assert trainer.strategy is strategy


def test_a_new_process_writes_on_in_the_file_of_the_former_one(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "marks"

    def logger() -> Any:
        return library.module("loggers").CSVLogger(tmp_path, name="log")

    former = logger()
    lines = Lines([former], Marks(path, anew=True))
    for step in range(3):
        former.log_metrics({"loss": step / 2}, step)
        former.save()
    at_commit, names = [*lines.counts], lines.names()
    former.log_metrics({"loss": 9.0, "rate": 0.1}, 3)
    former.save()
    file = tmp_path / "log" / "version_0" / "metrics.csv"
    whole = file.read_text()
    file.write_text(whole[:-3])  # it died in a write
    joining = logger()
    lines = Lines([joining], Marks(path, anew=False))
    lines.counts[:] = at_commit
    lines.go_on(names)
    joining.log_metrics({"loss": 9.0, "rate": 0.1}, 3)
    joining.log_metrics({"loss": 0.0, "rate": 0.2}, 4)
    joining.save()
    assert joining.version == 0
    assert file.read_text() == whole + "0.0,0.2,4\n".replace("\n", whole[-2:] if whole.endswith("\r\n") else "\n")
