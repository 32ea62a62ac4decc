"""The training state: committed steps, the value of a rank's state at a fault, and its recovery.

torch is imported first. In a rank, the import of torch triggers the import of this package (`torchrun.script`), which
must not be partially imported by then.
"""

import torch  # noqa: F401

from taskd.adaptors.faults import register_fault
from taskd.adaptors.training.checkpoints.checkpoint import load_latest
from taskd.adaptors.training.checkpoints.saved import save
from taskd.adaptors.training.data.shares import Share
from taskd.adaptors.training.session import resilient
from taskd.adaptors.training.state import TrainState

__all__ = ["Share", "TrainState", "load_latest", "register_fault", "resilient", "save"]
