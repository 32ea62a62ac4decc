"""The manager inside the agent of a one-node job."""

import secrets
from dataclasses import replace

from taskd.config.address import LOOPBACK
from taskd.config.agent import AgentConfig
from taskd.config.manager import ManagerConfig
from taskd.config.security import Security
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from taskd.runtime.manager.manager import Manager


def connect(config: AgentConfig, ranks_per_node: int, files: RankFiles) -> tuple[AgentSocket, Manager | None]:
    """An agent's link to its manager, which is started here if the job of one node has none elsewhere."""
    if config.manager is not None:
        security = secured(config.security, config.manager, config.run_dir)
        return AgentSocket(config.manager, security), None
    embedded = embedded_config(config, ranks_per_node)
    manager = Manager(embedded, embedded=True)
    files.records = manager.mark
    manager.start()
    return AgentSocket(manager.address, embedded.security), manager


def embedded_config(config: AgentConfig, ranks_per_node: int) -> ManagerConfig:
    """The configuration of a manager inside the agent of a one-node job: loopback, any port, a secret of its own."""
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
    return replace(base, security=own)
