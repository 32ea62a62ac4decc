"""Entry of a node into a multi-node job: by torchrun's rendezvous if the job starts, past it if it trains already.

Rules:

1. torchrun's rendezvous forms a job. A job that trains needs none: the manager states which node holds which place.
2. The rendezvous runs on a thread. A node could wait in it forever, such as the first of a static one whose peers all
   train. On the thread it can be left as soon as the manager answers. The node then removes its name from the
   rendezvous.
3. A node that has no place yet starts stand-ins that end at once. Its ranks' processes start when it receives a place.
"""

import copy
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.rendezvous.api import RendezvousHandler

from taskd.adaptors.torchrun.waiting import withdraw
from taskd.runtime.agent.ports import NodeRuntime, Outlook
from taskd.wire.kinds import NodeRank

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_ANSWER_S: Final = 2.0
"""Time for the manager's answer after a failed rendezvous, in seconds.

torch closes a rendezvous with the first node that ends. So it may refuse a node before the manager has answered.
"""


def most_nodes(spec: WorkerSpec) -> int:
    """Return the most nodes that this torchrun expects: M of `--nnodes=N:M`."""
    handler: Any = spec.rdzv_handler
    settings = getattr(handler, "settings", None)
    if settings is not None:
        return int(settings.max_nodes)
    return int(getattr(handler, "world_size", 1))


def least_nodes(spec: WorkerSpec) -> int:
    """Return MIN of `--nnodes=MIN:MAX`, 0 if that is one number: then only the job's strategies decide on shrinking."""
    settings: Any = getattr(spec.rdzv_handler, "settings", None)
    return int(settings.min_nodes) if settings is not None and settings.min_nodes < settings.max_nodes else 0


def wanted_place(spec: WorkerSpec) -> NodeRank:
    """Return the node rank that the launcher gave, -1 if none."""
    rank = getattr(spec.rdzv_handler, "rank", None)
    return NodeRank(int(rank) if rank is not None else -1)


def keep_open(handler: RendezvousHandler) -> None:
    """Keep the rendezvous open for the other nodes when this one ends.

    torchrun closes its rendezvous for all nodes when one node ends. A node that never took part must not cause that.
    """
    vars(handler)["shutdown"] = lambda: True


def attempt(rendezvous: Callable[[WorkerGroup], None], worker_group: WorkerGroup, runtime: NodeRuntime) -> WorkerGroup:
    """Run torchrun's rendezvous on a copy of the group, and leave it half way if the job trains already.

    Returns the formed group, or a group whose `store` is None if the rendezvous was left. Raises the rendezvous's own
    error.
    """
    formed = copy.copy(worker_group)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            rendezvous(formed)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="taskd-rendezvous", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.warning("torchrun's rendezvous alone forms the world: no thread can be had beside it (%s)", error)
        rendezvous(formed)
        return formed
    while thread.is_alive() and runtime.outlook(0.0) is not Outlook.LIVING:
        thread.join(_LOOK_S)
    if runtime.outlook(_ANSWER_S if failed else None) is Outlook.LIVING:
        logger.warning("the job trains already: this node waits for a place in it")
        withdraw(worker_group.spec.rdzv_handler, thread)
        newcomer = copy.copy(worker_group)
        newcomer.store = None
        return newcomer
    if failed:
        raise failed[0]
    return formed


def resize(worker_group: WorkerGroup, places: int | None, *, living: bool) -> bool:
    """Fit a group to a job of `places` nodes. Returns whether this node has no place in it."""
    spec, group = worker_group.spec, cast("Any", worker_group)
    if living:
        group.group_rank = max(0, wanted_place(spec))
        group.master_addr, group.master_port = spec.master_addr or "127.0.0.1", spec.master_port or 0
        group.workers = [
            Worker(local_rank=local, global_rank=local, role_rank=local) for local in range(spec.local_world_size)
        ]
    elif places is None or places >= (worker_group.group_world_size or 1):
        return False
    count = places or 1
    logger.info("the job has %d places, %s nodes may come", count, worker_group.group_world_size)
    group.group_world_size = count
    for worker in worker_group.workers:
        worker.world_size = worker.role_world_size = count * spec.local_world_size
    return living or int(worker_group.group_rank or 0) >= count


def put_aside(given: dict[str, Any], interpreter: str) -> dict[str, Any]:
    """Replace the ranks in `given` by stand-ins. Returns the true entrypoint and arguments, for torch's context."""
    real = {"entrypoint": given["entrypoint"], "args": dict(given["args"])}
    given["entrypoint"] = interpreter
    given["args"] = dict.fromkeys(given["args"], ("-S", "-c", "raise SystemExit(1)"))
    return real
