"""Starts of the ranks' processes.

Rules:

1. A rank gets a standby if one waits or is on its way (`taskd.core.warm_starts`) and the order allows it. Otherwise its
   process is started cold, which is logged. If no rank can be started cold, a standby does not count as warm.
2. Only the newest order for a rank counts.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack

from taskd.core.agent import Node, Start
from taskd.errors import RecoveryError
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.agent.given import new_environment, order_to_become, working_folder
from taskd.runtime.agent.ports import Logs, WorkerHost
from taskd.runtime.agent.rank_process import RankProcesses
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import RankStatus, Stage

logger = logging.getLogger(__name__)


class Starts:
    """Starter of one node's processes. A start may wait until a standby arrives."""

    def __init__(
        self,
        files: RankFiles,
        deaths: DeathWatch,
        pool: StandbyPool,
        processes: RankProcesses,
        collector: EvidenceCollector,
    ) -> None:
        self._files = files
        self._deaths = deaths
        self._pool = pool
        self._processes = processes
        self._collector = collector
        self._waiting: deque[tuple[WorkerHost, Start, float]] = deque()

    def order(self, node: Node, host: WorkerHost, start: Start) -> None:
        """Start a rank's new process. If a standby is on its way, the start waits for it."""
        self._waiting = deque(entry for entry in self._waiting if entry[1].rank != start.rank)
        warm = host.command(self._processes[start.rank].local_rank).python and (self._pool.only or not start.cold)
        standby = self._pool.take() if warm else None
        wait_s = self._pool.wait_s
        if standby is None and warm and wait_s > 0:
            self._waiting.append((host, start, time.monotonic() + wait_s))
            self._pool.refill(waiting=len(self._waiting))
            self._pool.hurry()
            return
        self._try_launch(node, host, start, standby)

    def serve(self, node: Node) -> None:
        """Serve the waiting starts: a standby may have arrived, or a template that can make one."""
        while self._waiting:
            standby = self._pool.take()
            if standby is None:
                self._pool.refill(waiting=len(self._waiting))
                return
            self._try_launch(node, *self._waiting.popleft()[:2], standby)

    def expire(self, node: Node, now_s: float) -> None:
        """Carry out starts that have waited too long for a standby, cold if there is still none."""
        while self._waiting and (now_s >= self._waiting[0][2] or self._pool.wait_s <= 0):
            self._try_launch(node, *self._waiting.popleft()[:2], self._pool.take())

    def clear(self) -> None:
        """Drop all waiting starts."""
        self._waiting.clear()

    def _try_launch(self, node: Node, host: WorkerHost, start: Start, standby: Peer | None) -> None:
        try:
            self._launch(node, host, start, standby)
        except RecoveryError as error:  # mostly torchrun has begun to end its ranks, and reports that itself
            logger.info("%s", error)
        except OSError as error:  # the system refuses a process, a file or memory: torchrun's own behaviour takes over
            logger.error("rank %d gets no process: %s", start.rank, error)
            raise
        finally:
            if standby is not None and not self._processes.is_held_by(start.rank, standby.pid):
                self._pool.dismiss(standby)

    def _launch(self, node: Node, host: WorkerHost, start: Start, standby: Peer | None) -> None:
        local = self._processes[start.rank].local_rank
        self._processes.number(local, start.incarnation, start.generation)
        env, logs = new_environment(self._files, host, node.directive, start, local)
        why = "a warm one has failed in this job's set-up" if start.cold else "no warm process was ready"
        if standby is not None and standby.send(order_to_become(host.command(local).argv, env, logs, working_folder())):
            refusal = self._try_to_adopt(host, local, standby, env, logs)
            if refusal is None:
                self._pool.became_rank(standby)
                self.begin(node, start, standby.pid, warm=not self._pool.only)
                return
            why = str(refusal)
            if self._pool.only:
                raise refusal
        elif standby is not None and self._pool.only:  # it has died, and another may come
            self._files.discard(local, start.incarnation)
            self.order(node, host, start)
            return
        pid = host.spawn(local, env, logs)
        logger.info("rank %d starts cold: %s", start.rank, why)
        self.begin(node, start, pid, warm=False)

    def _try_to_adopt(
        self, host: WorkerHost, local: LocalRank, standby: Peer, env: Mapping[str, str], logs: Logs
    ) -> RecoveryError | None:
        """Give the rank to a standby that was ordered to become it. If the host refuses, kill it and return why.

        The standby has the rank's environment, and soon its own session: the end of its template would not end it.
        """
        with ExitStack() as refused:
            refused.callback(self._pool.kill, standby)
            try:
                host.adopt(local, standby.pid, env, logs)
            except RecoveryError as error:
                return error
            refused.pop_all()
        return None

    def begin(self, node: Node, start: Start, pid: int, *, warm: bool) -> None:
        """Record a started process as the holder of its rank, and watch it."""
        node.started(
            RankStatus(
                rank=start.rank,
                incarnation=start.incarnation,
                generation=start.generation,
                stage=Stage.STARTING,
                pid=pid,
                warm=warm,
                at_s=time.monotonic(),
                term=start.term,
            )
        )
        box = self._processes.begin(start.rank, start.incarnation, pid)
        self._collector.begin(start.rank, pid, start.incarnation)
        self._deaths.watch(pid, box)
