"""Recovery in place for torchtitan: its trainer, or one of your own made from it.

    torchrun ... -m taskd.titan --job.config_file ...        in place of -m torchtitan.train

or, for a class of your own:

    from taskd.titan import resilient

    main(resilient(MyTrainer))

Under plain torchrun, and alone, it trains as torchtitan does. See docs/trainers/titan.md.
"""

from typing import Any, TypeVar

from torchtitan.train import Trainer as _Trainer
from torchtitan.train import main

from taskd.adaptors.trainers.titan.trainer import TitanRecovery

__all__ = ["Trainer", "main", "resilient"]
T = TypeVar("T", bound=type)


def resilient(trainer: T, **options: Any) -> T:
    """That class of trainer, whose `train()` goes on through faults of its ranks.

    Args:
        trainer: `torchtitan.train.Trainer`, or a class made from it.
        options: as `taskd.TrainState` takes them: `backup_every`, `verify`, `every`.
    """
    made: Any = type(trainer.__name__, (TitanRecovery, trainer), {"taskd_options": options})
    made.__module__, made.__doc__ = trainer.__module__, trainer.__doc__
    return made  # type: ignore[no-any-return]


Trainer: Any = resilient(_Trainer)

if __name__ == "__main__":
    main(Trainer)
