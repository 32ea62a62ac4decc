"""Supervisor of one node's rank processes: it starts, orders and fences them, and handles the end of each.

Rules:

1. `RankProcesses` records which process holds which rank and how to reach it. `Starts` gives a rank its process.
2. A message counts only if it comes from the process that holds the rank now.
"""

import logging
import os
import time
from signal import SIGKILL

from typing_extensions import assert_never

from taskd.config.process import environment, without_rank
from taskd.config.worker import TemplateConfig
from taskd.core.agent import (
    Action,
    Evict,
    Fence,
    Node,
    RankState,
    Start,
    StopNode,
    Take,
    TellJoin,
    TellPause,
    TellRelease,
)
from taskd.core.diagnosis.endings import cause, ending_of, error_of
from taskd.core.diagnosis.evidence import Evidence
from taskd.errors import RecoveryError, TaskdError
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.agent.deaths import DeathWatch, ProcessEnd, ending_status
from taskd.runtime.agent.given import preload
from taskd.runtime.agent.ports import Templates, WorkerHost
from taskd.runtime.agent.rank_process import RankProcesses
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.recovery_log import RecoveryLog
from taskd.runtime.agent.shape import Shape
from taskd.runtime.agent.standbys import StandbyPool
from taskd.runtime.agent.starts import Starts
from taskd.runtime.system.cgroups import thaw
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from taskd.wire.messages import Abandon, Directive, Join, Pause, Release, Stage

logger = logging.getLogger(__name__)
LAST_WORDS_S = 2.0
_LOOK_S = 0.01
WAITING = (Stage.PAUSED, Stage.FINISHED, Stage.DUMPED)
"""Stages at which a rank waits for an order."""


class RankSupervisor:
    """All rank processes of one node. For the agent's thread; `fresh_environment` is for torchrun's main thread."""

    def __init__(self, files: RankFiles, deaths: DeathWatch, pool: StandbyPool, preload: tuple[str, ...]) -> None:
        self._files = files
        self.processes = RankProcesses(files)
        self._deaths, self._pool = deaths, pool
        self._preload = preload
        self._host: WorkerHost | None = None
        self._templates: Templates | None = None
        """Source of templates before torchrun has started a process."""
        self.collector = EvidenceCollector()
        self._recoveries = RecoveryLog()
        self.starts = Starts(files, deaths, pool, self.processes, self.collector)
        self.seen: dict[JobRank, Evidence] = {}
        """Evidence of deaths that was not sent to the manager yet."""
        self.moved = False
        """True if this node was given a place, or lost one, since torchrun formed the world."""

    # ---- torchrun has started, or restarted, the whole group

    def fresh_environment(self, local_rank: LocalRank, generation: int, places: int = 0) -> dict[str, str]:
        """Return the variables of a process of a fresh world that torchrun itself starts, in a job of `places`."""
        incarnation, generation = self.processes.number_fresh(local_rank, generation)
        config = self._files.prepare(local_rank, incarnation, generation, Shape(places=places), joins=False)
        return {**config.environment(), **preload()}

    def take(self, host: WorkerHost, node: Node) -> None:
        """Watch the processes that torchrun has just started."""
        self._host = host
        self.starts.clear()
        self.processes.hold(host)
        for process in tuple(self.processes):
            first = Start(process.rank, process.incarnation, self.processes.generation, joins=False)
            self.starts.begin(node, first, host.pid(process.local_rank), warm=False)
        self.processes.named()

    def wait(self, host: WorkerHost) -> None:
        """Let go of all ranks, because this node holds no place."""
        self._host = host
        self.processes.let_go()
        self.processes.named()

    def evict(self) -> None:
        """Kill every process, and let go of their ranks."""
        self.moved = True
        self.starts.clear()
        for process in self.processes:
            self._need_host().kill(process.local_rank, SIGKILL)
            self.processes.end(process, keep=False)
        self.processes.let_go()

    def settle(self, place: NodeRank) -> tuple[JobRank, ...]:
        """Take over this place and return its ranks. Files of this node's former ranks are dropped, as not theirs."""
        host = self._need_host()
        self.moved = True
        host.assign(place)
        self.processes.hold(host)
        for local in host.local_ranks:
            self._files.forget(local)
        return tuple(process.rank for process in self.processes)

    def dismiss(self) -> None:
        """End this node, because the job has ended well."""
        if self._host is not None:
            self._host.dismiss()

    def runs_python(self) -> bool:
        """Return whether a standby can run the ranks' command."""
        if self._host is None:
            return False
        command = self._host.command(self._host.local_ranks[0])
        if not command.python:
            logger.info("no warm processes: %s", command.reason)
        return command.python

    def lend(self, templates: Templates) -> None:
        """Accept a source of templates: the node check needs standbys before there is a rank."""
        self._templates = templates

    def start_template(self) -> int:
        """Start the process that forks standbys, with the ranks' environment without the variables of a single rank."""
        host = self._host
        template = TemplateConfig(self._files.socket, os.getpid(), self._preload).environment()
        if host is None and self._templates is not None:
            return self._templates.start({**without_rank(environment()), **template})
        host = self._need_host()
        return host.start_template({**without_rank(host.environment(host.local_ranks[0])), **template})

    # ---- actions of the node's table

    def perform(self, node: Node, actions: list[Action], *, may_start: bool) -> None:
        """Perform the actions one after the other; log those that fail."""
        for action in actions:
            self._try(node, action, may_start=may_start)

    def _try(self, node: Node, action: Action, *, may_start: bool) -> None:
        try:
            self._perform(node, action, may_start=may_start)
        except TaskdError:
            logger.exception("%s failed", action)

    def _perform(self, node: Node, action: Action, *, may_start: bool) -> None:
        match action:
            case Evict():
                logger.warning("this node holds no place any more: its processes end, and it waits for another")
                self.evict()
            case Take():
                logger.warning("this node takes place %d", action.place)
                self.perform(node, node.occupy(self.settle(action.place)), may_start=may_start)
            case Fence():
                self.fence(action.rank)
            case Start():
                if may_start:
                    self.starts.order(node, self._need_host(), action)
            case TellPause():
                pause = Pause(generation=action.generation, reason=action.reason, at_commit=action.at_commit)
                self.processes.tell(action.rank, pause)
            case TellJoin():
                self.processes.tell(action.rank, Join(plan=action.plan))
            case TellRelease():
                self.processes.tell(action.rank, Release(generation=action.generation, sequence=action.sequence))
            case StopNode():
                self.starts.clear()
                if action.exit_code:
                    self._await_the_dying(node)
                    self.give_up(action.reason)
                else:
                    self.dismiss()
            case _:
                assert_never(action)

    def _await_the_dying(self, node: Node) -> None:
        """Let ranks that have sent a self-report die before the others: torchrun reports the first as the cause."""
        until_s = time.monotonic() + LAST_WORDS_S
        dying = [rank for rank, slot in node.slots.items() if slot.words[0] and slot.state is RankState.RUNNING]
        while dying and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            dying = [rank for rank in dying if self._exit_status(rank) is None]

    def follow(self, node: Node, directive: Directive, *, elsewhere: bool) -> None:
        """Record a directive of a manager `elsewhere` or in this process. It names the folder of its records."""
        self._files.records = directive.records
        if elsewhere:
            ranks = [slot.status for slot in node.slots.values()]
            self._recoveries.follow(directive, node.place, ranks, time.monotonic())

    # ---- one process

    def rest(self) -> None:
        """Start nothing any more. taskd is about to end the living processes, so their end counts as no fault."""
        self.starts.clear()
        for process in self.processes:
            if self._exit_status(process.rank) is None and ending_status(process.pid) is None:
                process.fenced = True

    def _exit_status(self, rank: JobRank) -> int | None:
        return self._need_host().exit_status(self.processes[rank].local_rank)

    def ended(self, node: Node, ending: ProcessEnd) -> list[Action]:
        """Return the actions for a process that is ending, or gone; none if it no longer holds its rank."""
        process = self.processes.by_pid(ending.pid)
        if process is None:
            return []
        if not self.processes.holds(process):
            if ending.gone:  # another process has its rank already
                self.processes.end(process)
            return []
        rank = process.rank
        slot = node.slots[rank]
        status = self._exit_status(rank) if ending.gone else ending_status(ending.pid)
        status = self._need_host().judge(process.local_rank, status, slot.status.stage)
        if status is None:
            if ending.gone:  # torchrun's own thread is collecting it at this moment
                self._deaths.tell_again(ending.pid)
            return []
        process.fenced = process.fenced or slot.state is RankState.FENCED
        finished = slot.status.stage in (Stage.FINISHED, Stage.RELEASED)
        end = ending_of(status, finished=finished, fenced=process.fenced)
        known = self.collector.take(rank, ending.pid, process.box, node=node.place, ending=end)
        if not process.fenced:
            self.seen[rank] = known
        if ending.gone:
            self.processes.end(process, keep=status != 0)
        said, _ = slot.words
        told, error = cause(known, status, said), error_of(known, status, said)
        step = -1 if known.position.step is None else known.position.step
        return node.ended(rank, status=status, cause=told, error=error, step=step, at_s=time.monotonic())

    def fence(self, rank: JobRank) -> None:
        """Kill the rank's whole process group."""
        host, local = self._need_host(), self.processes[rank].local_rank
        host.kill(local, SIGKILL)
        thawed = thaw(host.pid(local))
        if thawed is not None:
            logger.warning("rank %d was frozen: %s is thawed, so that its process can end", rank, thawed)

    # ---- control of failed ranks

    def stock(self) -> None:
        """Leave failed ranks to torchrun from now on."""
        self.starts.clear()
        if self._host is not None:
            self._host.stock()

    def manage(self) -> None:
        """Let taskd handle failed ranks from now on."""
        if self._host is not None:
            self._host.manage()

    def give_up(self, reason: str) -> None:
        """End the job on this node."""
        if self._host is not None:
            self._host.give_up(reason)
        else:
            logger.error("the job ends, before a process was started here: %s", reason)

    def release_waiting(self, node: Node, reason: str) -> None:
        """Release ranks that wait for an order, because none will come."""
        for rank, slot in node.slots.items():
            if slot.state is RankState.RUNNING and slot.status.stage in WAITING:
                self.processes.tell(rank, Abandon(reason=reason))

    def reap(self, node: Node) -> None:
        """Collect dead standbys, and serve the ranks that may have waited for one of them."""
        pids: tuple[int, ...] = ()
        if self._host is not None:
            pids = self._host.reap_standbys()
        elif self._templates is not None:
            pids = self._templates.reap()
        self._pool.reaped(pids)
        if pids:
            self.starts.serve(node)

    def _need_host(self) -> WorkerHost:
        if self._host is None:
            raise RecoveryError("torchrun has started no process yet")
        return self._host
