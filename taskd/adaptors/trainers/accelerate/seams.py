"""The names that the adapter reads and sets in accelerate."""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Line, Seam

_LOADERS: Final = "accelerate.data_loader"

TABLE: Final[tuple[Line, ...]] = (
    Seam("accelerate", "Accelerator.sync_gradients", Fit.ACCEPTS),
    Seam("accelerate", "Accelerator.accumulate", Fit.ACCEPTS, ("self", "models")),
    Seam(
        "accelerate",
        "Accelerator",
        Fit.SETS,
        (
            "_models",
            "_optimizers",
            "_schedulers",
            "_dataloaders",
            "_custom_objects",
            "scaler",
            "step",
            "gradient_state",
        ),
    ),
    Seam("accelerate.state", "GradientState", Fit.HAS, ("dataloader_references", "end_of_dataloader", "remainder")),
    Seam("accelerate.state", "GradientState._set_sync_gradients", Fit.EXACT, ("self", "sync_gradients")),
    Seam(_LOADERS, "DataLoaderAdapter", Fit.SETS, ("base_dataloader",)),
    Seam(_LOADERS, "DataLoaderShard", Fit.SETS, ("rng_types", "synchronized_generator", "iteration", "gradient_state")),
    Seam(_LOADERS, "DataLoaderShard", Fit.HAS, ("begin", "end", "reset", "set_epoch", "end_of_dataloader")),
    Seam("accelerate.optimizer", "AcceleratedOptimizer", Fit.SETS, ("optimizer", "_is_overflow")),
    Seam("accelerate.scheduler", "AcceleratedScheduler", Fit.SETS, ("scheduler",)),
)
