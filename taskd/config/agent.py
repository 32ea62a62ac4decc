"""The agent's configuration: the environment of torchrun, checked and frozen.

Rules:

1. `is_enabled` comes first and is cheap. In a torchrun with taskd off, nothing else of taskd is read, checked or
   warned about.
2. Only the exact word `on` switches taskd on, here as in `libtaskd.so`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskd.config import settings
from taskd.config.address import Address, manager_address
from taskd.config.job import job_id
from taskd.config.process import own_environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.security import Security

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentConfig:
    """Settings of one node's agent.

    The processes inherit `checkpoint_dir`, `standby_shared` and `allows_inexact` by their variables. The agent reads
    them too, to report a mistake at the start.

    Attributes:
        manager: address of the manager; None if the agent embeds it.
        nearby: address at which a job of one node may have a manager of its own, because MASTER_ADDR is set. The agent
            uses that manager if it answers, else it embeds one.
        presumes_manager: `manager` comes from MASTER_ADDR alone. The job has several nodes and cannot embed a manager.
    """

    job_id: str
    manager: Address | None
    security: Security
    run_dir: Path
    standbys: int
    preload: tuple[str, ...]
    learn_modules: bool
    heartbeat_s: float
    manager_wait_s: float
    checkpoint_dir: Path | None = None
    nearby: Address | None = None
    presumes_manager: bool = False
    node_check: bool = False
    exclude_straggler: bool = False
    nccl_times: bool = False
    standby_shared: bool = False
    allows_inexact: bool = False

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None, *, master_addr: str | None = None, node_count: int = 1
    ) -> "AgentConfig":
        """Read the environment of torchrun. Log one warning for all unknown `TASKD_` variables.

        `master_addr` is torchrun's `--master-addr`, None if the user did not give it. Raises `ConfigError`.
        """
        source = Source(own_environment() if env is None else env)
        warn_of_unknown_variables(source.env)
        manager = manager_address(source.env, master_addr, node_count)
        presumed = manager is not None and source.text(settings.MANAGER) is None
        nearby = manager if presumed and node_count == 1 else None
        return cls(
            job_id=job_id(source),
            manager=None if nearby else manager,
            nearby=nearby,
            presumes_manager=presumed and not nearby,
            security=Security.from_source(source),
            run_dir=run_dir(source),
            standbys=source.whole(settings.STANDBY),
            preload=source.modules(settings.PRELOAD),
            learn_modules=source.switch(settings.LEARN_MODULES),
            heartbeat_s=source.seconds(settings.HEARTBEAT_S),
            manager_wait_s=source.seconds(settings.MANAGER_WAIT_S),
            checkpoint_dir=source.path(settings.CHECKPOINT_DIR),
            node_check=source.switch(settings.NODE_CHECK),
            exclude_straggler=source.switch(settings.EXCLUDE_STRAGGLER),
            nccl_times=source.switch(settings.NCCL_TIMES),
            standby_shared=source.switch(settings.STANDBY_SHARED),
            allows_inexact=source.allows(settings.INEXACT),
        )


def warn_of_unknown_variables(env: Mapping[str, str]) -> None:
    """Log one warning that names every unknown `TASKD_` variable, each with its nearest match."""
    unknown = settings.unknown_variables(env)
    if unknown:
        logger.warning(
            "these variables are no settings of taskd and have no effect: %s; `taskd doctor` checks them all",
            ", ".join(name.advice for name in unknown),
        )
