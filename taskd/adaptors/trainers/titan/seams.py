"""The names that the adapter overrides, calls and reads in torchtitan."""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Line, Seam

_TRAIN: Final = "torchtitan.train"
_TOOLS: Final = "torchtitan.distributed.utils"
_METRICS: Final = "torchtitan.components.metrics"

TABLE: Final[tuple[Line, ...]] = (
    Seam(_TRAIN, "Trainer.train", Fit.EXACT, ("self",)),
    Seam(_TRAIN, "Trainer.train_step", Fit.EXACT, ("self", "data_iterator")),
    Seam(_TRAIN, "Trainer.batch_generator", Fit.EXACT, ("self", "data_iterable")),
    Seam(
        _TRAIN,
        "Trainer.forward_backward_step",
        Fit.EXACT,
        ("self", "input_dict", "labels", "global_valid_tokens"),
    ),
    Seam(
        _TRAIN,
        "Trainer",
        Fit.SETS,
        (
            *("step", "ntokens_seen", "dataloader", "model_parts", "optimizers", "lr_schedulers", "checkpointer"),
            *("metrics_processor", "loss_fn", "parallel_dims", "device"),
        ),
    ),
    Seam(_TRAIN, "dist_utils", Fit.HAS, ("clip_grad_norm_", "dist_sum", "dist_max")),
    Seam(_TOOLS, "dist_sum", Fit.ACCEPTS, ("x", "mesh")),
    Seam(_TOOLS, "dist_max", Fit.ACCEPTS, ("x", "mesh")),
    Seam("torchtitan.components.checkpoint", "CheckpointManager.load", Fit.ACCEPTS, ("self", "step")),
    Seam("torchtitan.components.checkpoint", "CheckpointManager.save", Fit.ACCEPTS, ("self", "curr_step", "last_step")),
    Seam(_METRICS, "MetricsProcessor.should_log", Fit.EXACT, ("self", "step")),
    Seam(
        _METRICS,
        "MetricsProcessor.log",
        Fit.EXACT,
        ("self", "step", "global_avg_loss", "global_max_loss", "grad_norm", "extra_metrics"),
    ),
    Seam("torchtitan.components.loss", "IGNORE_INDEX", Fit.ACCEPTS),
)
