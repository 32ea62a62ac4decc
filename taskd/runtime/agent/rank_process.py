"""The processes of one node's ranks: a record of each, and one owner of all records.

Rules:

1. A rank that this node holds has a record, also before its first process is started: then one of pid -1.
2. The newest process of a rank holds it. An older one is known until it is gone, and what it says counts for nothing.
3. torchrun's main thread starts a world's processes one after the other, and names all of them at its end. What such a
   process says before that is kept until then: its Hello comes once.
4. Numbers of processes (incarnations) and of worlds (generations) only rise, also when torchrun restarts the group: its
   own thread takes the next ones then, under the lock. All else belongs to the agent's thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from taskd.errors import ShimError
from taskd.runtime.agent.ports import WorkerHost
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.box.blackbox import Box
from taskd.runtime.system.processes import session_of
from taskd.wire.kinds import JobRank, LocalRank
from taskd.wire.messages import FromLocal, Hello, PeersKey, ToLocal

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RankProcess:
    """One process of a rank, from its start until it is gone."""

    rank: JobRank
    local_rank: LocalRank
    incarnation: int
    pid: int = -1
    box: Box | None = None
    peer: Peer | None = None
    """Its socket, while it can be spoken to."""
    wrapped: bool = False
    """It may be a wrapper: then another process of its session is the rank."""
    fenced: bool = False
    """This agent ends it: its end is no fault of its own."""


class RankProcesses:
    """All of one node."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._newest: dict[LocalRank, int] = {}
        """The incarnation that was numbered last."""
        self._held: dict[JobRank, RankProcess] = {}
        self._known: dict[int, RankProcess] = {}  # by pid, until it is gone
        self._starting = False
        """torchrun starts processes that it has not named yet."""
        self._early: deque[tuple[Peer, FromLocal | None]] = deque()
        """What came of processes that are perhaps among them."""
        self.generation = 0

    def number_fresh(self, local_rank: LocalRank, generation: int) -> tuple[int, int]:
        """Incarnation and generation of a process of a fresh world that torchrun itself is about to start."""
        with self._lock:
            self._starting = True
            incarnation = self._newest[local_rank] = self._newest.get(local_rank, -1) + 1
            self.generation = max(generation, self.generation) if incarnation == 0 else generation + 1
            return incarnation, self.generation

    def number(self, local_rank: LocalRank, incarnation: int, generation: int) -> None:
        """The manager has given these numbers to a process that is about to start."""
        with self._lock:
            self._newest[local_rank] = incarnation
            self.generation = max(self.generation, generation)

    # ---- who holds which rank

    def hold(self, host: WorkerHost) -> None:
        """This node holds the host's ranks from now on, and no process of theirs is known yet."""
        with self._lock:
            found = [
                RankProcess(host.rank_of(local), local, self._newest.get(local, 0), wrapped=host.command(local).wrapper)
                for local in host.local_ranks
            ]
        self._held = {process.rank: process for process in found}

    def let_go(self) -> None:
        """This node holds no rank."""
        self._held = {}

    def begin(self, rank: JobRank, incarnation: int, pid: int) -> Box | None:
        """A process holds the rank from now on; its black box."""
        former = self._held[rank]
        box = self._files.box(former.local_rank, incarnation)
        new = RankProcess(rank, former.local_rank, incarnation, pid, box, wrapped=former.wrapped)
        self._held[rank] = self._known[pid] = new
        return box

    def end(self, process: RankProcess, *, keep: bool = True) -> None:
        """It is gone, or will be and is of no interest; its black box stays among the job's records, or does not."""
        self._known.pop(process.pid, None)
        process.box = None
        name = f"rank-{process.rank}-incarnation-{process.incarnation}.box" if keep else ""
        self._files.discard(process.local_rank, process.incarnation, keep_as=name)

    def __iter__(self) -> Iterator[RankProcess]:
        """Those that hold a rank, or are to."""
        return iter(self._held.values())

    def __getitem__(self, rank: JobRank) -> RankProcess:
        """The one that holds this rank."""
        return self._held[rank]

    def holds(self, process: RankProcess) -> bool:
        """Whether no other has its rank already."""
        return self._held.get(process.rank) is process

    def is_held_by(self, rank: JobRank, pid: int) -> bool:
        """Whether this process holds the rank."""
        process = self._held.get(rank)
        return process is not None and process.pid == pid

    def by_pid(self, pid: int) -> RankProcess | None:
        """One that is not known to be gone, whether it holds its rank still or not."""
        return self._known.get(pid)

    def box(self, rank: JobRank) -> Box | None:
        """The black box of a rank's process."""
        process = self._held.get(rank)
        return None if process is None else process.box

    def recorded_setup(self, rank: JobRank, digest: str) -> None:
        """What the rank's process has recorded of its set-up, for the next one, has this digest."""
        self._files.recorded_setup(self._held[rank].local_rank, digest)

    # ---- their sockets

    def named(self) -> None:
        """Learn that torchrun has named all processes of the world: what they have said before is received now."""
        with self._lock:
            self._starting = False

    def in_time(self, received: Iterable[tuple[Peer, FromLocal | None]]) -> Iterator[tuple[Peer, FromLocal | None]]:
        """Yield what was received, but keep what came of processes that torchrun has not named yet until it has."""
        while self._early and not self._starting:
            yield self._early.popleft()
        for peer, message in received:
            if self._starting and self._is_early(peer, message):
                self._early.append((peer, message))
            else:
                yield peer, message

    def _is_early(self, peer: Peer, message: FromLocal | None) -> bool:
        if isinstance(message, Hello):
            return message.role == "worker" and self._claimed(peer, message) is None
        return any(other is peer for other, _ in self._early)

    def hello(self, peer: Peer, hello: Hello, peers_key: str) -> bool:
        """A worker has connected: whether it is the process that holds its rank, which is given `peers_key` then."""
        process = self._claimed(peer, hello)
        if process is None:
            logger.debug("process %d says it is rank %d; it is not", peer.pid, hello.rank)
            return False
        process.peer = peer
        if process.wrapped and process.box is not None and not _owns(peer, process.box):
            process.box = None  # it tells of another process of the wrapper
        peer.send(PeersKey(key=peers_key))
        return True

    def _claimed(self, peer: Peer, hello: Hello) -> RankProcess | None:
        """Return the process that a worker says it is, if it may be it."""
        process = self._held.get(hello.rank)
        if process is None or process.incarnation != hello.incarnation or not _may_be(peer, process):
            return None
        return process

    def gone(self, peer: Peer) -> None:
        """A socket has closed. What that means for the rank, the death watch tells."""
        for process in self:
            if process.peer is peer:
                process.peer = None

    def rank_of(self, peer: Peer) -> JobRank | None:
        """The rank whose process this is."""
        return next((process.rank for process in self if process.peer is peer), None)

    def any_peer(self) -> Peer | None:
        """Some worker that can be spoken to."""
        return next((process.peer for process in self if process.peer is not None), None)

    def tell(self, rank: JobRank, message: ToLocal) -> None:
        """Tell a rank's process; one that has not connected yet is told when it does."""
        process = self._held.get(rank)
        if process is not None and process.peer is not None:
            process.peer.send(message)

    def tell_all(self, message: ToLocal) -> set[JobRank]:
        """Tell every process that can be spoken to; their ranks."""
        return {process.rank for process in self if process.peer is not None and process.peer.send(message)}


def _may_be(peer: Peer, process: RankProcess) -> bool:
    """Whether a peer is the rank: the process itself, or the first that a wrapper has in its session."""
    if peer.pid == process.pid:
        return True
    if not process.wrapped:
        return False
    known = process.peer
    return session_of(peer.pid) == process.pid if known is None else known.pid == peer.pid  # it has connected anew


def _owns(peer: Peer, box: Box) -> bool:
    """Whether a box is a peer's, or nobody's yet."""
    try:
        return box.read().owner_pid in (0, peer.pid)
    except ShimError:
        return False
