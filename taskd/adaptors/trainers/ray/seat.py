"""The seat of one worker in its group: code that makes a process group for all makes one for the new worker there.

Ray's own code for a whole group runs unchanged on it. It does the work for the new worker's rank; all other work is
done already.
"""

from collections.abc import Callable
from typing import Any

import ray
from ray.train.v2._internal.execution.worker_group import ReplicaGroup


class Seat:
    """A stand-in for the whole group, for Ray's backend. `rank` is the new worker's, of `size`."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        context = group.get_workers()[0].distributed_context
        self.rank: int = context.world_rank
        self.size: int = context.world_size

    def __len__(self) -> int:
        return self.size

    def execute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Execute a function by the new worker alone."""
        return list(self._group.execute(function, *args, **kwargs))

    def execute_single(self, _rank: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Execute a function by the new worker: its answer serves for any one worker's."""
        return self._group.execute_single(0, function, *args, **kwargs)

    def execute_single_async(self, rank: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Execute a function by the worker of this rank, if that is the new one; else return a reference to None."""
        if rank != self.rank:
            return ray.put(None)
        return self._group.execute_single_async(0, function, *args, **kwargs)

    def get_resources_per_worker(self) -> dict[str, float]:
        """Return the resources that each worker has."""
        return dict(self._group.get_resources_per_worker())
