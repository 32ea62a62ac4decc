"""`ray.train.report`, each exactly once, whichever worker is replaced in between.

Rules:

1. All ranks call it alike, as Ray requires. After each recovery the first call agrees with the other ranks on the
   reports that Ray has received. The new ranks have that number from Ray.
2. A report that Ray has dropped is given again before the next one. Its checkpoint is at its place already.
"""

import json
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train.v2._internal.execution.context import get_train_context

from taskd.adaptors.trainers.ray.owed import KeptReport, Owed
from taskd.adaptors.training import runtime as runtimes

_NOBODY = -1


class TrainReports:
    """Give it to the state, `TrainState(..., data={"reports": reports})`, and call `report` in place of Ray's.

    To be made once in the training function, before the state.
    """

    def __init__(self) -> None:
        self._total: int = get_train_context().current_report_index
        self._owed = Owed(began=self._total)
        self._world = 0
        self._told = False

    def report(self, metrics: dict[str, Any], checkpoint: "ray.train.Checkpoint | None" = None) -> None:
        """Report as `ray.train.report`. A report that Ray has received already, before a fault, is not given again."""
        self._settle()
        if not self._owed.next():
            return
        ray.train.report(metrics, checkpoint=checkpoint)
        persisted = ray.train.get_checkpoint() if checkpoint is not None else None
        self._owed.keep(metrics, "" if persisted is None else persisted.path)

    def state_dict(self) -> dict[str, Any]:
        """Return the data for this rank's next process; called by the state."""
        return self._owed.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the data of a former process; called by the state."""
        self._owed.load(state)

    def _settle(self) -> None:
        runtime = runtimes.current()
        if runtime is None or runtime.world.generation == self._world:
            return
        self._world = runtime.world.generation
        new, self._told = runtime.link.config.joins and not self._told, True
        known = torch.tensor([self._total if new else _NOBODY], device=ray.train.torch.get_device())
        dist.all_reduce(known, op=dist.ReduceOp.MAX)
        if known.item() != _NOBODY:
            for kept in self._owed.settle(int(known.item())):
                _give_again(kept)


def _give_again(kept: KeptReport) -> None:
    checkpoint = None
    if kept.path:
        storage = get_train_context().get_storage()
        checkpoint = ray.train.Checkpoint(kept.path, filesystem=storage.storage_filesystem)
    mode = ray.train.CheckpointUploadMode.NO_UPLOAD
    ray.train.report(json.loads(kept.metrics), checkpoint=checkpoint, checkpoint_upload_mode=mode)
