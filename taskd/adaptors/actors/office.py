"""The manager of a job of actors, and the store over which its ranks meet: in one process that outlives them all.

Rules:

1. The manager has a thread of its own, and so has the store: neither needs the process's main thread.
2. If ranks may be on other hosts, it listens on all interfaces. The job's secret is made here, at random.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from taskd.adaptors.actors.ticket import Ticket
from taskd.config.address import ALL_INTERFACES, LOOPBACK, Address
from taskd.config.manager import ManagerConfig
from taskd.config.process import own_environment
from taskd.config.security import Security
from taskd.core.recovery.budget import DEFAULT_MAX_RESTARTS
from taskd.runtime.manager.manager import Manager

_SECRET_BYTES: Final = 32


class Office:
    """Manager and store of one job, until it is closed.

    Attributes:
        ticket: the data for each rank's process, however it is started.
    """

    def __init__(
        self, world_size: int, host: str | None, keys: Mapping[str, object], *, restart_all: bool = True
    ) -> None:
        """Start the manager and the store.

        `host` is this host's address for the ranks' hosts; None: all are on this machine. `restart_all`: True if all
        processes may be ended to start anew, when nothing else is left. If not, the job ends.

        Raises:
            ConfigError: a key is wrong.
            LinkError: the address cannot be used.
        """
        from taskd.adaptors.torchrun.store import NodeStore

        given = {"job_id": "default", "port": 0, **keys, "node_nums": world_size, "proc_per_node": 1}
        given["host"] = LOOPBACK if host is None else ALL_INTERFACES
        secret = secrets.token_hex(_SECRET_BYTES)
        known = ManagerConfig.from_mapping(given, own_environment())
        security = Security(secret=secret.encode(), job_id=known.job_id)
        deadlines = replace(known.policy.deadlines, learn_set_up=False)
        strategies = replace(known.policy.strategies, restart_all=restart_all)
        policy = replace(known.policy, deadlines=deadlines, strategies=strategies)
        config = replace(known, security=security, policy=policy)
        self._manager = Manager(config, embedded=True)
        where = Address(LOOPBACK if host is None else host, self._manager.address.port)
        self._store: NodeStore | None = NodeStore(where)
        store = self._store.serve()
        restarts = config.policy.budget.max_restarts
        self.ticket: Final = Ticket(
            host=where.host,
            port=where.port,
            secret=secret,
            job_id=config.job_id,
            world_size=world_size,
            store_host=store.host,
            store_port=store.port,
            store_key=store.key,
            max_restarts=DEFAULT_MAX_RESTARTS if restarts is None else restarts,
            heartbeat_s=config.policy.membership.heartbeat_s,
        )
        self._manager.start()

    @property
    def exit_code(self) -> int:
        """Exit code of the job, once it has ended; 0 until then."""
        return self._manager.exit_code

    def close(self) -> None:
        """End the manager. From then on no rank is recovered; running ranks go on."""
        self._manager.stop()
        self._store = None
