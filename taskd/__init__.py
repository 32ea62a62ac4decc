"""taskd keeps a PyTorch training job running through faults.

Rules:

1. Importing the package costs nothing and loads nothing, because torchrun imports it on every node, even with taskd
   off. The names below are resolved at first use. Only then are torch and the rest imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskd.adaptors.training import Share, TrainState, load_latest, register_fault, resilient, save
    from taskd.api.actors import agent, manager
    from taskd.config.process import restart_count

__version__ = "0.1.0"
__all__ = [
    "Share",
    "TrainState",
    "__version__",
    "agent",
    "load_latest",
    "manager",
    "register_fault",
    "resilient",
    "restart_count",
    "save",
]

_TRAINING = ("Share", "TrainState", "load_latest", "register_fault", "resilient", "save")
_ACTORS = ("agent", "manager")


def __getattr__(name: str) -> object:
    """Resolve a public name at its first use."""
    value: object
    if name in _ACTORS:
        from taskd.api import actors

        value = getattr(actors, name)
    elif name == "restart_count":
        from taskd.config.process import restart_count as value
    elif name in _TRAINING:
        from taskd.adaptors import training

        value = getattr(training, name)
    else:
        raise AttributeError(f"module 'taskd' has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
