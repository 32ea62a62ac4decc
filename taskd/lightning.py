"""Recovery in place for PyTorch Lightning: a script needs only `Trainer(strategy=TaskdDDPStrategy())`.

    import lightning as L
    from taskd.lightning import TaskdDDPStrategy

    trainer = L.Trainer(strategy=TaskdDDPStrategy(), ...)
    trainer.fit(model, loader)

Under torchrun with an agent, a rank that dies in `trainer.fit` is replaced while the other processes stay. The step is
repeated, with the same result. Without an agent, or with a Lightning that taskd does not fit, a strategy behaves as
Lightning's own. The strategies belong to the package that the script has imported before: `lightning` or
`pytorch_lightning`.
"""

from taskd.adaptors.trainers.lightning.library import chosen
from taskd.adaptors.trainers.lightning.strategies import recovering

__all__ = ["TaskdDDPStrategy", "TaskdModelParallelStrategy"]

_library = chosen()
_strategies = _library.module("strategies")

TaskdDDPStrategy = recovering(
    _strategies.DDPStrategy, "TaskdDDPStrategy", "`DDPStrategy`, with recovery in place.", _library
)
TaskdModelParallelStrategy = recovering(
    _strategies.ModelParallelStrategy,
    "TaskdModelParallelStrategy",
    "`ModelParallelStrategy` (FSDP2, tensor parallel), with recovery in place.",
    _library,
)
