"""Data loaders of a DeepSpeed training, kept at their place as they are without taskd.

Rules:

1. A `PlainPlace` keeps the place of a loader of torch's. The loader of `deepspeed.initialize(training_data=…)` makes a
   new one of torch's whenever it is iterated over. Now it takes the same one each time, whose place is kept.
2. For torch's loaders and DeepSpeed's, order and global random numbers are those without taskd.
"""

from importlib import import_module
from typing import Any

from torch.utils.data import DataLoader

from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.errors import ConfigError


def place_of(loader: Any) -> PlainPlace:
    """Keep the place of a loader from now on.

    Raises:
        ConfigError: the loader is of no known kind.
    """
    if isinstance(loader, DataLoader):
        return PlainPlace(loader)
    module = import_module("deepspeed.runtime.dataloader")
    if type(loader) is not module.DeepSpeedDataLoader or loader.curriculum_learning_enabled:
        raise ConfigError(
            f"taskd.deepspeed.state got loader={type(loader).__name__}, expected a DataLoader of torch's, or that of "
            "deepspeed.initialize(training_data=…) without curriculum learning; give another by data={'loader': …}"
        )
    inner = _made_by(loader, module)
    place = PlainPlace(inner)

    def create() -> Any:
        loader.dataloader, loader.data = inner, iter(inner)
        return inner

    loader._create_dataloader = create
    return place


def _made_by(loader: Any, module: Any) -> Any:
    """Return the torch loader that this loader would make; nothing is iterated over."""
    made: list[Any] = []

    def catch(*args: Any, **options: Any) -> tuple[()]:
        made.append(DataLoader(*args, **options))
        return ()

    original, module.DataLoader = module.DataLoader, catch
    try:
        loader._create_dataloader()
    finally:
        module.DataLoader = original
    return made[0]
