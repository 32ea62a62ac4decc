"""Who gives the job another node: the port, and the command of `TASKD_NODE_COMMAND` that serves it.

A node that was asked for comes as one more torchrun with the job's own lines, on whatever machine. Nothing is promised:
the manager waits for it as long as its policy says, and goes on without it then.
"""

import logging
import shlex
import subprocess
from typing import Protocol

from taskd.config.process import environment
from taskd.wire.kinds import NodeRank

logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """Hands out nodes."""

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """A node is wanted for this place (-1: any). Returns at once; raises nothing that would end the job."""
        ...


class NoCluster:
    """Nobody can be asked: whoever runs the job starts a node by hand, or its controller does by itself."""

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """Say so."""
        wanted = f"node {node_rank} is wanted" if node_rank >= 0 else "another node is wanted"
        logger.warning("%s (%s): start its torchrun again anywhere, or set TASKD_NODE_COMMAND", wanted, reason)


class CommandCluster:
    """Runs a command for each node that is wanted; `TASKD_NODE_RANK` and `TASKD_NODE_REASON` tell it which and why."""

    def __init__(self, command: str, job_id: str) -> None:
        self._words = shlex.split(command)
        self._job_id = job_id
        self._running: list[subprocess.Popen[bytes]] = []

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """Start the command; its output goes where the manager's goes."""
        self._reap()
        wanted = {"TASKD_NODE_RANK": str(node_rank), "TASKD_NODE_REASON": reason, "TASKD_JOB_ID": self._job_id}
        try:
            process = subprocess.Popen(
                self._words, env={**environment(), **wanted}, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            logger.error(
                "the command for another node cannot be started: %s; expected an executable in TASKD_NODE_COMMAND, "
                "found %r",
                error,
                self._words,
            )
            return
        self._running.append(process)
        which = f"node {node_rank}" if node_rank >= 0 else "another node"
        logger.warning("asked the cluster for %s (process %d): %s", which, process.pid, reason)

    def _reap(self) -> None:
        for process in list(self._running):
            status = process.poll()
            if status is None:
                continue
            self._running.remove(process)
            if status:
                logger.warning("the command for another node (process %d) ended with status %d", process.pid, status)


def cluster_of(command: str | None, job_id: str) -> Cluster:
    """The cluster that the settings name."""
    return CommandCluster(command, job_id) if command else NoCluster()
