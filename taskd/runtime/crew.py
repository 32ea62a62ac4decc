"""The processes of one node: who holds which rank, how a new one is started, how an end is noticed.

Rules:

1. A rank's process is taken from a standby if one waits or is on its way, else started cold, and that is said.
2. A report counts only if it comes from the process that now holds the rank.
3. Numbers of processes (incarnations) and of worlds (generations) only rise, also when torchrun restarts the group.
"""

import logging
import os
import time
from collections import deque
from signal import SIGKILL

from typing_extensions import assert_never

from taskd.config.process import environment, without_rank
from taskd.config.worker import TemplateConfig
from taskd.core.agent import (
    Action,
    Evict,
    Fence,
    Node,
    Start,
    State,
    StopNode,
    Take,
    TellJoin,
    TellPause,
    TellRelease,
)
from taskd.core.endings import cause, ending_of
from taskd.core.evidence import Evidence
from taskd.errors import RecoveryError, TaskdError
from taskd.runtime.blackbox import Box
from taskd.runtime.cgroups import thaw
from taskd.runtime.deaths import DeathWatch, Ending, ending_status
from taskd.runtime.given import new_environment, preload
from taskd.runtime.ports import Templates, WorkerHost
from taskd.runtime.rankfiles import RankFiles
from taskd.runtime.shape import Shape
from taskd.runtime.sockets import Peer
from taskd.runtime.standbys import StandbyPool
from taskd.runtime.witness import Witness
from taskd.wire.messages import Become, Hello, Join, Pause, RankStatus, Release, Stage, ToLocal

logger = logging.getLogger(__name__)
LAST_WORDS_S = 2.0
_LOOK_S = 0.01
STANDBY_WAIT_S = 5.0
"""A standby that was asked for is awaited so long; then the rank is started cold."""


class Crew:
    """All processes of one node. Used by the agent's thread; `fresh_environment` by torchrun's main thread before."""

    def __init__(self, files: RankFiles, deaths: DeathWatch, pool: StandbyPool, preload: tuple[str, ...]) -> None:
        self._files = files
        self._deaths = deaths
        self._pool = pool
        self._preload = preload
        self._host: WorkerHost | None = None
        self._templates: Templates | None = None
        """What starts a template before torchrun has started a process."""
        self._local: dict[int, int] = {}  # global to local rank
        self._peers: dict[int, Peer] = {}
        self._waiting: deque[tuple[Start, float]] = deque()
        self._incarnations: dict[int, int] = {}  # by local rank
        self._fenced: set[int] = set()
        """Processes that were killed by this agent, until they are gone."""
        self._boxes: dict[int, tuple[int, int, int]] = {}
        """By pid, until it is gone: rank, local rank and incarnation that its black box is kept by."""
        self.witness = Witness()
        self.seen: dict[int, Evidence] = {}
        """By rank: what nobody has asked for, and the manager has not been told yet."""
        self.moved = False
        """This node has been given a place, or lost one, since torchrun formed the world."""
        self.generation = 0

    # ---- torchrun has started, or restarted, the whole group

    def fresh_environment(self, local_rank: int, generation: int, places: int = 0) -> dict[str, str]:
        """Variables of a process of a fresh world that torchrun itself starts, in a job of so many places."""
        incarnation = self._incarnations[local_rank] = self._incarnations.get(local_rank, -1) + 1
        self.generation = max(generation, self.generation) if incarnation == 0 else generation + 1
        config = self._files.prepare(local_rank, incarnation, self.generation, Shape(places=places), joins=False)
        return {**config.environment(), **preload()}

    def take(self, host: WorkerHost, node: Node) -> None:
        """Watch the processes that torchrun has just started."""
        self._host = host
        self._peers.clear()
        self._waiting.clear()
        self._local = {host.rank_of(local): local for local in host.local_ranks}
        for rank, local in self._local.items():
            first = Start(rank, self._incarnations.get(local, 0), self.generation, joins=False)
            self._begin(node, first, host.pid(local), warm=False)

    def wait(self, host: WorkerHost) -> None:
        """This node holds no place: nothing runs on it."""
        self._host = host
        self._local = {}

    def evict(self) -> None:
        """Kill every process, and forget what they held."""
        self.moved = True
        self._waiting.clear()
        for local in self._local.values():
            self._need_host().kill(local, SIGKILL)
            self._files.discard(local, self._incarnations.get(local, 0))
        self._peers.clear()
        self._local = {}

    def settle(self, place: int) -> tuple[int, ...]:
        """The ranks of the place that this node holds now. Positions of ranks that it held before are not theirs."""
        host = self._need_host()
        self.moved = True
        host.assign(place)
        self._local = {host.rank_of(local): local for local in host.local_ranks}
        for local in host.local_ranks:
            self._files.forget(local)
        return tuple(self._local)

    def dismiss(self) -> None:
        """The job has ended well."""
        if self._host is not None:
            self._host.dismiss()

    def runs_python(self) -> bool:
        """Whether a standby can run what the ranks run."""
        if self._host is None:
            return False
        command = self._host.command(self._host.local_ranks[0])
        if not command.python:
            logger.info("no warm processes: %s", command.reason)
        return command.python

    def lend(self, templates: Templates) -> None:
        """Standbys are wanted before there is a rank: for a node check."""
        self._templates = templates

    def start_template(self) -> int:
        """Start the process that forks standbys, with the ranks' environment less what is a rank's own."""
        host = self._host
        template = TemplateConfig(self._files.socket, os.getpid(), self._preload).environment()
        if host is None and self._templates is not None:
            return self._templates.start({**without_rank(environment()), **template})
        host = self._need_host()
        return host.start_template({**without_rank(host.environment(host.local_ranks[0])), **template})

    # ---- what the node's table wants

    def perform(self, node: Node, actions: list[Action], *, may_start: bool) -> None:
        """Do it, one after the other; what fails is logged."""
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
                    self.start(node, action)
            case TellPause():
                pause = Pause(generation=action.generation, reason=action.reason, at_commit=action.at_commit)
                self.tell(action.rank, pause)
            case TellJoin():
                self.tell(action.rank, Join(plan=action.plan))
            case TellRelease():
                self.tell(action.rank, Release(generation=action.generation))
            case StopNode():
                self._waiting.clear()
                if action.exit_code:
                    self._await_the_dying(node)
                    self.give_up(action.reason)
                else:
                    self.dismiss()
            case _:
                assert_never(action)

    def _await_the_dying(self, node: Node) -> None:
        """Who has said what it dies of is to be dead before the others end: torchrun reports the first as the cause."""
        until_s = time.monotonic() + LAST_WORDS_S
        dying = [rank for rank, slot in node.slots.items() if slot.words[0] and slot.state is State.RUNNING]
        while dying and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
            dying = [rank for rank in dying if self._need_host().exit_status(self._local[rank]) is None]

    # ---- one process

    def start(self, node: Node, action: Start) -> None:
        """Start a rank's new process; if a standby is on its way, when it arrives. Only the newest order counts."""
        host = self._need_host()
        self._waiting = deque(entry for entry in self._waiting if entry[0].rank != action.rank)
        warm = host.command(self._local[action.rank]).python
        standby = self._pool.take() if warm else None
        if standby is None and warm and self._pool.pending:
            self._waiting.append((action, time.monotonic() + STANDBY_WAIT_S))
            self._pool.refill(extra=len(self._waiting))
            return
        self._try_launch(node, action, standby)

    def serve_waiting(self, node: Node) -> None:
        """A standby may have arrived."""
        while self._waiting:
            standby = self._pool.take()
            if standby is None:
                return
            self._try_launch(node, self._waiting.popleft()[0], standby)

    def expire(self, node: Node, now_s: float) -> None:
        """Start those cold that have waited too long for a standby."""
        while self._waiting and (now_s >= self._waiting[0][1] or not self._pool.pending):
            self._try_launch(node, self._waiting.popleft()[0], self._pool.take())

    def rest(self, node: Node) -> None:
        """Start nothing any more. Whoever lives yet is about to be ended, which is no fault of its own."""
        self._waiting.clear()
        for rank, slot in node.slots.items():
            pid, local = slot.status.pid, self._local.get(rank)
            ended = self._host is None or local is None or self._host.exit_status(local) is not None
            if not ended and ending_status(pid) is None:
                self._fenced.add(pid)

    def _try_launch(self, node: Node, action: Start, standby: Peer | None) -> None:
        try:
            self._launch(node, action, standby)
        except RecoveryError as error:  # mostly torchrun has begun to end its ranks: that is for it alone to tell
            logger.info("%s", error)

    def _launch(self, node: Node, action: Start, standby: Peer | None) -> None:
        host, local = self._need_host(), self._local[action.rank]
        self.generation = max(self.generation, action.generation)
        self._incarnations[local] = action.incarnation
        self._peers.pop(action.rank, None)
        env, logs = new_environment(self._files, host, node.directive, action, local)
        if standby is not None:
            command = host.command(local)
            become = Become(
                env=env,
                argv=command.argv,
                cwd=os.getcwd(),
                stdout=logs.stdout,
                stderr=logs.stderr,
            )
            if standby.send(become):
                host.adopt(local, standby.pid, env, logs)
                self._begin(node, action, standby.pid, warm=True)
                return
        logger.info("rank %d starts cold: no warm process was ready", action.rank)
        pid = host.spawn(local, env, logs)
        self._begin(node, action, pid, warm=False)

    def _begin(self, node: Node, start: Start, pid: int, *, warm: bool) -> None:
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
        self._boxes[pid] = start.rank, self._local[start.rank], start.incarnation
        self.witness.begin(start.rank, pid, start.incarnation)
        self._deaths.watch(pid, self._files.box(self._local[start.rank], start.incarnation))

    def ended(self, node: Node, ending: Ending) -> list[Action]:
        """A process is ending, or gone: what follows for the rank that it holds, if it still holds one."""
        host = self._host
        rank = next((rank for rank, slot in node.slots.items() if slot.status.pid == ending.pid), None)
        if rank is None or host is None:
            if ending.gone:  # another process has its rank already
                self._bury(ending.pid)
            return []
        status = host.exit_status(self._local[rank]) if ending.gone else ending_status(ending.pid)
        if status is None:
            return []
        slot = node.slots[rank]
        if slot.state is State.FENCED:
            self._fenced.add(ending.pid)
        fenced = ending.pid in self._fenced
        finished = slot.status.stage in (Stage.FINISHED, Stage.RELEASED)
        end = ending_of(status, finished=finished, fenced=fenced)
        known = self.witness.take(rank, ending.pid, self.box(node, rank), node=node.place, ending=end)
        if not fenced:
            self.seen[rank] = known
        if ending.gone:
            self._bury(ending.pid, keep=status != 0)
        return node.ended(rank, clean=status == 0, cause=cause(known, status), at_s=time.monotonic())

    def _bury(self, pid: int, *, keep: bool = True) -> None:
        """It is gone; its black box stays among the job's records."""
        self._fenced.discard(pid)
        held = self._boxes.pop(pid, None)
        if held is not None:
            rank, local, incarnation = held
            name = f"rank-{rank}-incarnation-{incarnation}.box" if keep else ""
            self._files.discard(local, incarnation, keep_as=name)

    def box(self, node: Node, rank: int) -> Box | None:
        """The black box of a rank's process."""
        slot, local = node.slots.get(rank), self._local.get(rank)
        return None if slot is None or local is None else self._files.box(local, slot.status.incarnation)

    def have_ended(self, node: Node) -> bool:
        """Whether this node has ranks, and all of them have ended well."""
        return bool(node.slots) and all(slot.status.stage is Stage.EXITED for slot in node.slots.values())

    def fence(self, rank: int) -> None:
        """Kill the rank's whole process group."""
        host, local = self._need_host(), self._local[rank]
        host.kill(local, SIGKILL)
        thawed = thaw(host.pid(local))
        if thawed is not None:
            logger.warning("rank %d was frozen: %s is thawed, so that its process can end", rank, thawed)

    # ---- their sockets

    def hello(self, node: Node, peer: Peer, hello: Hello) -> list[Action]:
        """A worker has connected; it counts if it is the process that holds its rank."""
        slot = node.slots.get(hello.rank)
        if slot is None or slot.status.pid != peer.pid or slot.status.incarnation != hello.incarnation:
            logger.debug("process %d says it is rank %d; it is not", peer.pid, hello.rank)
            return []
        self._peers[hello.rank] = peer
        return node.connected(hello.rank)

    def rank_of(self, peer: Peer) -> int | None:
        """The rank whose process this is."""
        return next((rank for rank, known in self._peers.items() if known is peer), None)

    def any_peer(self) -> Peer | None:
        """Some worker that can be spoken to."""
        return next(iter(self._peers.values()), None)

    def gone(self, peer: Peer) -> None:
        """A socket has closed. What that means for the rank, the death watch tells."""
        rank = self.rank_of(peer)
        if rank is not None:
            del self._peers[rank]

    def tell(self, rank: int, message: ToLocal) -> None:
        """Tell a rank's process; one that has not connected yet is told when it does."""
        peer = self._peers.get(rank)
        if peer is not None:
            peer.send(message)

    def tell_all(self, message: ToLocal) -> set[int]:
        """Tell every process that can be spoken to; their ranks."""
        return {rank for rank, peer in self._peers.items() if peer.send(message)}

    # ---- whose behaviour holds

    def stock(self) -> None:
        """torchrun decides."""
        self._waiting.clear()
        if self._host is not None:
            self._host.stock()

    def manage(self) -> None:
        """taskd decides."""
        if self._host is not None:
            self._host.manage()

    def give_up(self, reason: str) -> None:
        """End the job on this node."""
        if self._host is not None:
            self._host.give_up(reason)
        else:
            logger.error("the job ends, before a process was started here: %s", reason)

    def reap(self) -> None:
        """Collect dead standbys."""
        if self._host is not None:
            self._host.reap_standbys()
        elif self._templates is not None:
            self._templates.reap()

    def _need_host(self) -> WorkerHost:
        if self._host is None:
            raise RecoveryError("torchrun has started no process yet")
        return self._host
