"""Source of further nodes for the job: the port, and the command of `TASKD_NODE_COMMAND` that serves it.

A requested node arrives as one more torchrun with the job's own lines, on any machine. There is no guarantee: the
manager waits for it as long as its policy allows, and then goes on without it.
"""

import logging
import shlex
import subprocess
from typing import Protocol

from taskd.config.process import environment
from taskd.wire.kinds import NodeRank

logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """Source of further nodes."""

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """Request a node for this place (-1: any). Return at once; raise nothing that would end the job."""
        ...


class NoCluster:
    """Cluster without a command: a person starts a node by hand, or the job's controller does so by itself."""

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """Log the request."""
        wanted = f"node {node_rank} is wanted" if node_rank >= 0 else "another node is wanted"
        logger.warning("%s (%s): start its torchrun again anywhere, or set TASKD_NODE_COMMAND", wanted, reason)


class CommandCluster:
    """Cluster that runs a command for each node. `TASKD_NODE_RANK` and `TASKD_NODE_REASON` give it node and reason."""

    def __init__(self, command: str, job_id: str) -> None:
        self._words = shlex.split(command)
        self._job_id = job_id
        self._running: list[subprocess.Popen[bytes]] = []

    def request(self, node_rank: NodeRank, reason: str) -> None:
        """Start the command; it shares the manager's output."""
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
    """Return the cluster that the settings name."""
    return CommandCluster(command, job_id) if command else NoCluster()
