"""Activity of a training process beside training: evaluating, or writing a checkpoint. Both take their time.

Rules:

1. It is derived from outside, on request: the training itself pays nothing for it.
2. A process inside a function that writes or reads checkpoints is at a checkpoint, whatever else holds.
3. A process that has put all models of the training state into eval mode evaluates, while it is in the resilient
   function.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

from torch import nn

from taskd.core.diagnosis.evidence import Standing

_CHECKPOINT: Final = re.compile(
    r"/torch/serialization\.py:|/torch/distributed/checkpoint/|/torch/distributed/_checkpoint|/safetensors/"
    r"|/taskd/adaptors/training/checkpoints/\w+\.py:"
)


def see_standing(stack: Sequence[str], usual: Standing, modules: Collection[nn.Module]) -> Standing:
    """Return the activity by the main thread's stack and the models of the training state in use; else `usual`."""
    if any(_CHECKPOINT.search(frame) for frame in stack):
        return Standing.CHECKPOINT
    if usual is Standing.TRAINING and modules and not any(module.training for module in modules):
        return Standing.EVALUATION
    return usual
