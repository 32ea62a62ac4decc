"""The configuration that gives a trainer of Ray taskd's backend."""

import logging
from dataclasses import dataclass, field

from ray.train.torch.config import TorchConfig, _TorchBackend

from taskd.adaptors.trainers.library import fits
from taskd.adaptors.trainers.ray.seams import RAY_TRAIN

logger = logging.getLogger(__name__)


@dataclass
class TaskdTorchConfig(TorchConfig):
    """`TorchConfig`, with recovery in place: give it to `TorchTrainer(..., torch_config=TaskdTorchConfig())`.

    The training function uses `taskd.TrainState` and `taskd.resilient` as any script does. Ray's own
    `FailureConfig(max_failures=...)` sets how many failures Ray replaces workers for.

    Args:
        backend, init_method, timeout_s: as in `TorchConfig`.
        manager: keys of the dict of `init_taskd_manager` (docs/configuration.md), as `job_id`.
    """

    manager: dict[str, object] = field(default_factory=dict)

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """Class of taskd's backend, or of Ray's own if this version of Ray does not fit."""
        chosen: type[_TorchBackend] = _TorchBackend
        if fits("ray", RAY_TRAIN):
            from taskd.adaptors.trainers.ray.backend import TaskdBackend

            chosen = TaskdBackend
        return chosen
