"""Recovery in place on Ray: for Ray Train, and for plain actors that are ranks.

With Ray Train, give the trainer `torch_config=taskd.ray.TaskdTorchConfig()`, and report with `TrainReports`. With
plain actors, start `taskd.ray.manager` in the driver, and call `taskd.agent(ticket, rank)` in each actor. See
docs/trainers/ray.md.
"""

from typing import TYPE_CHECKING

import ray

from taskd.adaptors.trainers.ray.config import TaskdTorchConfig
from taskd.adaptors.trainers.ray.reports import TrainReports
from taskd.api import actors

if TYPE_CHECKING:
    from taskd.adaptors.actors.office import Office

__all__ = ["TrainReports", "TaskdTorchConfig", "manager"]


def manager(world_size: int, **keys: object) -> "Office":
    """Manage a job like `taskd.manager`, at the address by which the cluster's hosts reach this process.

    Raises:
        ConfigError: a key is unknown or wrong.
        LinkError: the address cannot be used.
    """
    return actors.manager(world_size, host=ray.util.get_node_ip_address(), **keys)
