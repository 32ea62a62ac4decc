"""The training state: what a step is, what it is worth at a fault, and how a rank gets it back.

torch comes first: in a rank its import brings all of this in (`torchrun.script`), which must not be half there by then.
"""

import torch  # noqa: F401

from taskd.adaptors.faults import register_fault
from taskd.adaptors.training.checkpoints.checkpoint import load_latest
from taskd.adaptors.training.checkpoints.saved import save
from taskd.adaptors.training.data.shares import Share
from taskd.adaptors.training.session import resilient
from taskd.adaptors.training.state import TrainState

__all__ = ["Share", "TrainState", "load_latest", "register_fault", "resilient", "save"]
