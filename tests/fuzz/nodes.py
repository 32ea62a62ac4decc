"""Live agents for the fuzz of messages: real ones, on hosts whose processes do nothing."""

import signal
import socket
import subprocess
from pathlib import Path

from taskd.config.address import Address
from taskd.config.agent import AgentConfig
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.ports import NodeIdentity
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from tests.runtime.host import Host

PER_NODE = 2


class Idle(Host):
    """Host of one place. Its processes are small, and each is collected as soon as another takes its rank."""

    def __init__(self, place: int) -> None:
        self.place = place
        super().__init__()

    def _start(self) -> "subprocess.Popen[bytes]":
        for process in getattr(self, "old", ()):
            process.kill()
            process.wait()
        self.old = []
        self.calls = []
        return subprocess.Popen(["sleep", "infinity"], start_new_session=True)

    def rank_of(self, local_rank: LocalRank) -> JobRank:
        return JobRank(self.place * PER_NODE + local_rank)

    def assign(self, place: int) -> None:
        self.place = place

    def kill(self, local_rank: LocalRank, number: signal.Signals) -> None:
        super().kill(local_rank, number)
        self.calls = []


class Node:
    """One live agent with its ranks, and its store's port, which answers."""

    def __init__(self, manager: Address, run_dir: Path, place: int, count: int, heartbeat_s: float = 0.2) -> None:
        env = {
            "TASKD_MANAGER": str(manager),
            "TASKD_RUN_DIR": str(run_dir),
            "TASKD_JOB_ID": "job",
            "TASKD_STANDBY": "0",
            "TASKD_HEARTBEAT_S": str(heartbeat_s),
            "TASKD_MANAGER_WAIT_S": "600",
        }
        self.place = place
        self._store = socket.create_server(("127.0.0.1", 0))
        rendezvous = Rendezvous("127.0.0.1", self._store.getsockname()[1])
        self.agent = NodeAgent(AgentConfig.from_environment(env), lambda: rendezvous)
        self.host = Idle(place)
        for local_rank in map(LocalRank, range(PER_NODE)):
            self.agent.worker_environment(local_rank)
        ranks = tuple(self.host.rank_of(local) for local in map(LocalRank, range(PER_NODE)))
        self.agent.started(self.host, NodeIdentity(NodeRank(place), count, ranks, None, 5))

    @property
    def heard_s(self) -> float:
        """Time of its manager's last answer."""
        return self.agent._timeout.answered_s

    @property
    def lives(self) -> bool:
        """True if its loop runs."""
        thread = self.agent._loop._thread
        return thread is not None and thread.is_alive()

    def close(self) -> None:
        self.agent.stopping()
        self.agent.stop()
        self.host.close()
        self._store.close()
