"""The names that the adapter overrides and reads in transformers and accelerate, and the trainers left as they are."""

from typing import Any, Final

from taskd.adaptors.seams.seam import Fit, Line, Look, Seam, installed
from taskd.adaptors.trainers.library import misfit

_TRAINER: Final = "transformers.trainer"
_STATES: Final = "transformers.trainer_callback"
_EPOCH: Final = (
    "self",
    "model",
    "epoch",
    "train_dataloader",
    "steps_in_epoch",
    "num_update_steps_per_epoch",
    "trial",
    "ignore_keys_for_eval",
    "start_time",
    "resume_from_checkpoint",
    "epochs_trained",
    "steps_trained_in_current_epoch",
)
_WORK: Final = (
    "self",
    "tr_loss",
    "grad_norm",
    "model",
    "trial",
    "epoch",
    "ignore_keys_for_eval",
    "start_time",
    "learning_rate",
)

TRANSFORMERS: Final[tuple[Line, ...]] = (
    Seam(_TRAINER, "Trainer._run_epoch", Fit.EXACT, _EPOCH),
    Seam(_TRAINER, "Trainer._maybe_log_save_evaluate", Fit.EXACT, _WORK),
    Seam(_TRAINER, "Trainer._finalize_training", Fit.EXACT, ("self", "trial", "num_train_samples", "start_time")),
    Seam(_TRAINER, "Trainer._load_rng_state", Fit.EXACT, ("self", "checkpoint")),
    Seam(_TRAINER, "Trainer._evaluate", Fit.ACCEPTS, ("trial", "ignore_keys_for_eval", "skip_scheduler")),
    Seam(_TRAINER, "Trainer.train", Fit.ACCEPTS, ("self", "resume_from_checkpoint")),
    Seam(_TRAINER, "Trainer.training_step", Fit.EXACT, ("self", "model", "inputs", "num_items_in_batch")),
    Seam(_TRAINER, "Trainer.floating_point_ops", Fit.EXACT, ("self", "inputs")),
    Seam(_TRAINER, "skip_first_batches", Fit.EXACT, ("dataloader", "num_batches")),
    Seam(_STATES, "CallbackHandler.on_log", Fit.ACCEPTS, ("args", "state", "control", "logs")),
    Seam(_STATES, "CallbackHandler.on_epoch_begin", Fit.ACCEPTS, ("args", "state", "control")),
    Seam(_STATES, "ExportableState", Fit.HAS, ("state", "from_state")),
    Seam(
        _STATES,
        "TrainerState",
        Fit.SETS,
        ("global_step", "log_history", "stateful_callbacks", "num_train_epochs", "best_metric"),
    ),
    Seam(_STATES, "TrainerControl", Fit.SETS, ("should_training_stop", "should_epoch_stop")),
)
ACCELERATE: Final[tuple[Line, ...]] = (
    Seam("accelerate", "Accelerator.backward", Fit.ACCEPTS, ("self", "loss")),
    Seam("accelerate.state", "GradientState", Fit.HAS, ("dataloader_references", "_add_dataloader")),
    Seam("accelerate.data_loader", "DataLoaderAdapter", Fit.SETS, ("base_dataloader",)),
    Seam("accelerate.data_loader", "DataLoaderDispatcher", Fit.SETS, ("skip_batches",)),
)
_LOOP: Final = ("_inner_training_loop", "_run_epoch", "_maybe_log_save_evaluate")


def unfit(trainer: Any, look: Look = installed) -> str:
    """Return why the trainer is left as it is, in a sentence; "" if it is recovered in place."""
    for package, table in (("transformers", TRANSFORMERS), ("accelerate", ACCELERATE)):
        if found := misfit(package, table, look):
            return found
    kind, args = type(trainer), trainer.args
    others = [name for name in _LOOP if getattr(kind, name).__module__ != _TRAINER]
    if others:
        return f"{kind.__name__} has a {others[0]} of its own, expected that of transformers' Trainer"
    if hasattr(trainer, "_buffered_inputs"):
        return f"{kind.__name__} keeps batches that it has generated from step to step, which nobody else has"
    fsdp = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    data = trainer.accelerator.dataloader_config
    left = {
        "DeepSpeed's engine (deepspeed=…)": trainer.is_deepspeed_enabled,
        "FSDP of version 1; fsdp_config={'version': 2} can be recovered": fsdp is not None and fsdp.fsdp_version != 2,
        "auto_find_batch_size, which starts the loop anew by itself": args.auto_find_batch_size,
        "DataParallel over several devices of one process": args.n_gpu > 1,
        "use_seedable_sampler=False, whose order no other process knows": not data.use_seedable_sampler,
        "a StatefulDataLoader of accelerate's": data.use_stateful_dataloader,
        "a search for hyperparameters": getattr(trainer, "hp_search_backend", None) is not None,
    }
    return next((f"the trainer uses {what}" for what, used in left.items() if used), "")
