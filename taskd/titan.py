"""Recovery in place for torchtitan: for its trainer, or for your own subclass.

    torchrun ... -m taskd.titan --job.config_file ...        in place of -m torchtitan.train

or, for a class of your own:

    from taskd.titan import resilient

    main(resilient(MyTrainer))

Under plain torchrun, or without torchrun, it trains as torchtitan does. See docs/trainers/titan.md.
"""

from typing import Any, TypeVar

from torchtitan.train import Trainer as _Trainer
from torchtitan.train import main

from taskd.adaptors.trainers.titan.trainer import TitanRecovery

__all__ = ["Trainer", "main", "resilient"]
T = TypeVar("T", bound=type)


def resilient(trainer: T, **options: Any) -> T:
    """Return a subclass of `trainer` whose `train()` continues through faults of its ranks.

    Args:
        trainer: `torchtitan.train.Trainer`, or a subclass.
        options: arguments of `taskd.TrainState`: `backup_every`, `verify`, `every`.
    """
    made: Any = type(trainer.__name__, (TitanRecovery, trainer), {"taskd_options": options})
    made.__module__, made.__doc__ = trainer.__module__, trainer.__doc__
    return made  # type: ignore[no-any-return]


Trainer: Any = resilient(_Trainer)

if __name__ == "__main__":
    main(Trainer)
