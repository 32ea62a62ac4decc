"""Ray's backend for torch, with a rank and an agent of taskd in each worker.

Rules:

1. It runs in Ray's controller, and so does the manager of the job: workers can be replaced as long as that lives.
2. Each worker is a replica group of its own to Ray: a worker that fails alone is replaced alone. All start anew only if
   all have failed, or Ray requires another number of them. Then there is a new job with a new manager.
3. Ray makes the process groups. taskd only comes first.
4. taskd never makes all workers start anew. If it cannot replace one, it ends them, and Ray starts anew as it does
   without taskd.
"""

import logging
from typing import Any

import ray
from ray.train.torch.config import TorchConfig, _TorchBackend
from ray.train.v2._internal.execution.worker_group import ReplicaGroup

from taskd.adaptors.actors.attach import attach
from taskd.adaptors.actors.office import Office
from taskd.adaptors.actors.ticket import Ticket
from taskd.adaptors.trainers.ray.seat import Seat

logger = logging.getLogger(__name__)
_WAIT_S = 600.0


class TaskdBackend(_TorchBackend):
    """A replacement for `_TorchBackend`."""

    has_replica_groups: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._office: Office | None = None

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Start all workers, or one that takes the place of another."""
        office = self._office
        if isinstance(worker_group, ReplicaGroup) and office is not None:
            seat = Seat(worker_group)
            seat.execute(take_rank, office.ticket, seat.rank)
            super().on_start(seat, backend_config)
            return
        self._close()
        keys = getattr(backend_config, "manager", {})
        host = ray.util.get_node_ip_address()
        self._office = office = Office(len(worker_group), host, keys, restart_all=False)
        ranks = range(len(worker_group))
        ray.get([worker_group.execute_single_async(rank, take_rank, office.ticket, rank) for rank in ranks])
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Shut all workers down. A worker that another is to replace has failed, and has nothing to shut down."""
        if isinstance(worker_group, ReplicaGroup):
            return
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            self._close()

    def _close(self) -> None:
        office, self._office = self._office, None
        if office is not None:
            office.close()


def take_rank(ticket: Ticket, rank: int) -> None:
    """Take the rank: the first action of each worker."""
    attach(ticket, rank, _WAIT_S)
