"""The way on for Lightning's loops in the middle: behind a commit, in a surviving process and in a new one.

`finish_batch` does the same as Lightning's loop over an epoch with a batch behind the training step, in its order. The
loop itself has no way to start there.
"""

from collections.abc import Sequence
from typing import Any

from taskd.adaptors.trainers.lightning.kept import Keeper
from taskd.adaptors.trainers.lightning.library import Library


def finish_epoch(trainer: Any, library: Library, keeps: Keeper) -> None:
    """Finish the epoch of the state, from the commit on."""
    epochs, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    committed = True
    while committed or not epochs.done:
        try:
            if committed:
                committed = False
                finish_batch(trainer, library, keeps)
            else:
                epochs.advance(fetcher)
            epochs.on_advance_end(fetcher)
        except StopIteration:  # noqa: PERF203 - as Lightning's loops do
            break
        finally:
            epochs.on_iteration_done()


def finish_batch(trainer: Any, library: Library, keeps: Keeper) -> None:
    """Do Lightning's work with a batch after the optimizers have stepped."""
    epochs, call = trainer.fit_loop.epoch_loop, library.module("trainer.call")
    epochs.batch_progress.increment_processed()
    epochs.update_lr_schedulers("step", update_plateau_schedulers=False)
    if epochs._num_ready_batches_reached():
        epochs.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    arguments = (keeps.output, keeps.batch, keeps.batch_idx)
    call._call_callback_hooks(trainer, "on_train_batch_end", *arguments)
    call._call_lightning_module_hook(trainer, "on_train_batch_end", *arguments)
    trainer._logger_connector.on_batch_end()
    epochs.batch_progress.increment_completed()
    trainer._logger_connector.update_train_step_metrics()


def untoggle(module: Any) -> None:
    """Switch parameters on again that were off while another optimizer's turn was interrupted.

    At once: in a new world the ranks compare the parameters that their wrappers train.
    """
    for parameter, wanted in vars(module).get("_param_requires_grad_state", {}).items():
        parameter.requires_grad = wanted
    vars(module)["_param_requires_grad_state"] = {}


def release(trainer: Any) -> None:
    """Undo the effects of an exception in an interrupted step."""
    module, model = trainer.lightning_module, trainer.strategy.model
    if trainer.validating:
        trainer.fit_loop.epoch_loop.val_loop._module_mode.restore(module)
    trainer.training = True
    if hasattr(model, "require_backward_grad_sync"):
        model.require_backward_grad_sync = True
    getattr(trainer.profiler, "current_actions", {}).clear()


def load_anew(trainer: Any, *, evaluates_anew: bool, joined: bool) -> None:
    """Make the loaders again that the training made on its way: a new process has none, or older ones.

    All ranks take part. Surviving ones keep the loader that they train from. `evaluates_anew`: there was no loader for
    evaluations as the training started. `joined`: this process uses the new loaders.
    """
    loop, val_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
    reloads = bool(trainer.reload_dataloaders_every_n_epochs)
    if reloads or evaluates_anew:
        val_loop._combined_loader = None
    if reloads:
        kept = loop._combined_loader, loop._data_fetcher
        made_in = loop._last_train_dl_reload_epoch
        loop._combined_loader = None
        loop.setup_data()
        loop._last_train_dl_reload_epoch = made_in
        if not joined:
            loop._combined_loader, loop._data_fetcher = kept


def go_to(trainer: Any, library: Library, keeps: Keeper, place: Sequence[Any] | None, *, wants_batch: bool) -> None:
    """Go to another process's place in the batches; None: to the place at the set-up's end."""
    loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fetcher = loop._data_fetcher
    if place is not None:
        last = fetcher.taskd_go_to(place, wants_last=wants_batch)
        if wants_batch and last is not None:
            keeps.batch = epochs._results.batch = moved(trainer, library, last[0])
    fetcher._start_profiler, fetcher._stop_profiler = epochs._on_before_fetch, epochs._on_after_fetch
    set_epoch = library.fabric("utilities.data")._set_sampler_epoch
    for loader in loop._combined_loader.flattened:
        set_epoch(loader, loop.epoch_progress.current.processed)


def moved(trainer: Any, library: Library, batch: Any) -> Any:
    """Return a batch as Lightning gives it to the training step."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
    call = library.module("trainer.call")
    return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)


def show_progress(trainer: Any, library: Library) -> None:
    """Make the bars of a new process show the epoch that it has joined."""
    for callback in trainer.callbacks:
        if isinstance(callback, library.module("callbacks").ProgressBar):
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
