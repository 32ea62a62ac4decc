"""Connection of an agent to its manager: elsewhere, nearby on this machine, or inside the agent."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from taskd.config.address import LOOPBACK, Address
from taskd.config.agent import AgentConfig
from taskd.config.manager import ManagerConfig
from taskd.config.security import Security
from taskd.core.membership.heartbeats import SPARSE
from taskd.core.membership.nearby import NearbyManager, choose_manager
from taskd.core.policy import Membership
from taskd.errors import RoomError
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from taskd.runtime.manager.manager import Manager
from taskd.runtime.system.processes import own_age_s

logger = logging.getLogger(__name__)
_LOOK_S = 0.05


def connect(
    config: AgentConfig, ranks_per_node: int, files: RankFiles, notes: Callable[[], int]
) -> tuple[AgentSocket, Manager | None]:
    """Return an agent's link to its manager; start one here if the job of one node has none elsewhere.

    `notes` returns the number of notes that wait for this thread. With one waiting, it does not wait for a manager.

    Raises:
        RoomError: the system does not allow the manager another thread.
    """
    if config.nearby is not None:
        found = _nearby(config, config.nearby, notes)
        if found is not None:
            return found, None
    if config.manager is not None:
        security = secured(config.security, config.manager, config.run_dir)
        return AgentSocket(config.manager, security), None
    embedded = embedded_config(config, ranks_per_node)
    manager = Manager(embedded, embedded=True)
    files.records = manager.mark
    try:
        manager.start()
    except RuntimeError as error:
        raise RoomError(
            f"its manager's thread cannot be started ({error}); allow more processes (ulimit -u)"
        ) from error
    return AgentSocket(manager.address, embedded.security, context=manager.context), manager


def _nearby(config: AgentConfig, address: Address, notes: Callable[[], int]) -> AgentSocket | None:
    """Return the link to a manager that was started on this machine for a job of one node; None if none answers."""
    link = AgentSocket(address, secured(config.security, address, config.run_dir))
    began_s, torchrun_s = time.monotonic(), own_age_s()
    while True:
        link.poll(_LOOK_S)
        link.receive()  # a manager sends nothing to an agent that has not reported
        answers, trouble = link.connected, link.trouble
        choice = choose_manager(time.monotonic() - began_s, torchrun_s, answers=answers, trouble=trouble is not None)
        if choice is NearbyManager.USE:
            return link
        if choice is NearbyManager.EMBED or notes():
            link.close()
            logger.warning(
                "MASTER_ADDR is set, and no manager answers at %s%s: the job of this one node is protected by a "
                "manager inside torchrun (set TASKD_MANAGER=%s to wait for one, or =embedded not to look for one)",
                address,
                f" ({trouble})" if trouble else "",
                address,
            )
            return None


def embedded_config(config: AgentConfig, ranks_per_node: int) -> ManagerConfig:
    """Return the configuration of a manager inside the agent of a one-node job: loopback, any port, its own secret.

    It gets only one of `SPARSE` heartbeats, so its agent may be silent `SPARSE` times longer.
    """
    keys: dict[str, object] = {
        "job_id": config.job_id,
        "node_nums": 1,
        "proc_per_node": ranks_per_node,
        "host": LOOPBACK,
        "port": 0,
        "run_dir": str(config.run_dir),
    }
    base = ManagerConfig.from_mapping(keys)
    own = Security(secret=secrets.token_hex(16).encode(), job_id=config.job_id)
    return replace(base, security=own, policy=replace(base.policy, membership=_sparse(base.policy.membership)))


def _sparse(dense: Membership) -> Membership:
    suspect_s = SPARSE * dense.suspect_s
    return Membership(SPARSE * dense.heartbeat_s, suspect_s, max(suspect_s, dense.dead_s))
