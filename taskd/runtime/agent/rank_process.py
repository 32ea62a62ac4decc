"""Processes of one node's ranks: a record of each, and one owner of all records.

Rules:

1. Each rank that this node holds has a record. Before its first process is started, the record has pid -1.
2. The newest process of a rank holds it. An older one stays known until it is gone, but its messages do not count.
3. torchrun's main thread starts a world's processes one after the other, and names all of them at its end. Messages of
   such a process are kept until then, because its Hello comes only once.
4. Numbers of processes (incarnations) and of worlds (generations) only rise, even when torchrun restarts the group. Its
   own thread then takes the next numbers, under the lock. All other state belongs to the agent's thread.
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
    """Its socket while it is connected."""
    wrapped: bool = False
    """True if it may be a wrapper: then another process of its session is the rank."""
    fenced: bool = False
    """True if this agent ends it: its end is no fault of its own."""


class RankProcesses:
    """All rank processes of one node."""

    def __init__(self, files: RankFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._newest: dict[LocalRank, int] = {}
        """Newest incarnation number of each local rank."""
        self._held: dict[JobRank, RankProcess] = {}
        self._known: dict[int, RankProcess] = {}  # by pid, until it is gone
        self._starting = False
        """True while torchrun starts processes that it has not named yet."""
        self._early: deque[tuple[Peer, FromLocal | None]] = deque()
        """Messages of processes that may be among them."""
        self.generation = 0

    def number_fresh(self, local_rank: LocalRank, generation: int) -> tuple[int, int]:
        """Return incarnation and generation of a process of a fresh world that torchrun is about to start itself."""
        with self._lock:
            self._starting = True
            incarnation = self._newest[local_rank] = self._newest.get(local_rank, -1) + 1
            self.generation = max(generation, self.generation) if incarnation == 0 else generation + 1
            return incarnation, self.generation

    def number(self, local_rank: LocalRank, incarnation: int, generation: int) -> None:
        """Record the manager's numbers for a process that is about to start."""
        with self._lock:
            self._newest[local_rank] = incarnation
            self.generation = max(self.generation, generation)

    # ---- holders of the ranks

    def hold(self, host: WorkerHost) -> None:
        """Hold the host's ranks from now on; no process of theirs is known yet."""
        with self._lock:
            found = [
                RankProcess(host.rank_of(local), local, self._newest.get(local, 0), wrapped=host.command(local).wrapper)
                for local in host.local_ranks
            ]
        self._held = {process.rank: process for process in found}

    def let_go(self) -> None:
        """Hold no rank any more."""
        self._held = {}

    def begin(self, rank: JobRank, incarnation: int, pid: int) -> Box | None:
        """Record the process that holds the rank from now on, and return its black box."""
        former = self._held[rank]
        box = self._files.box(former.local_rank, incarnation)
        new = RankProcess(rank, former.local_rank, incarnation, pid, box, wrapped=former.wrapped)
        self._held[rank] = self._known[pid] = new
        return box

    def end(self, process: RankProcess, *, keep: bool = True) -> None:
        """Forget a process that is gone, or of no interest any more. `keep` its black box among the job's records."""
        self._known.pop(process.pid, None)
        process.box = None
        name = f"rank-{process.rank}-incarnation-{process.incarnation}.box" if keep else ""
        self._files.discard(process.local_rank, process.incarnation, keep_as=name)

    def __iter__(self) -> Iterator[RankProcess]:
        """Iterate over the processes that hold a rank, or are to hold one."""
        return iter(self._held.values())

    def __getitem__(self, rank: JobRank) -> RankProcess:
        """Return the process that holds this rank."""
        return self._held[rank]

    def holds(self, process: RankProcess) -> bool:
        """Return whether no other process has its rank already."""
        return self._held.get(process.rank) is process

    def is_held_by(self, rank: JobRank, pid: int) -> bool:
        """Return whether this process holds the rank."""
        process = self._held.get(rank)
        return process is not None and process.pid == pid

    def by_pid(self, pid: int) -> RankProcess | None:
        """Return the process of this pid, unless it is gone; it need not hold its rank any more."""
        return self._known.get(pid)

    def box(self, rank: JobRank) -> Box | None:
        """Return the black box of a rank's process."""
        process = self._held.get(rank)
        return None if process is None else process.box

    def recorded_setup(self, rank: JobRank, digest: str) -> None:
        """Record the digest of the set-up that the rank's process has written for the next process."""
        self._files.recorded_setup(self._held[rank].local_rank, digest)

    # ---- their sockets

    def named(self) -> None:
        """Record that torchrun has named all processes of the world: their earlier messages are received now."""
        with self._lock:
            self._starting = False

    def in_time(self, received: Iterable[tuple[Peer, FromLocal | None]]) -> Iterator[tuple[Peer, FromLocal | None]]:
        """Yield the received messages, but keep those of processes that torchrun has not named yet until it has."""
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
        """Return whether a connected worker is the process that holds its rank. If so, send it `peers_key`."""
        process = self._claimed(peer, hello)
        if process is None:
            logger.debug("process %d says it is rank %d; it is not", peer.pid, hello.rank)
            return False
        process.peer = peer
        if process.wrapped and process.box is not None and not _owns(peer, process.box):
            process.box = None  # it belongs to another process of the wrapper
        peer.send(PeersKey(key=peers_key))
        return True

    def _claimed(self, peer: Peer, hello: Hello) -> RankProcess | None:
        """Return the process that a worker's Hello names, if the worker may be that process."""
        process = self._held.get(hello.rank)
        if process is None or process.incarnation != hello.incarnation or not _may_be(peer, process):
            return None
        return process

    def gone(self, peer: Peer) -> None:
        """Drop a closed socket. The death watch reports the consequence for its rank."""
        for process in self:
            if process.peer is peer:
                process.peer = None

    def rank_of(self, peer: Peer) -> JobRank | None:
        """Return the rank that this peer's process holds; None if it holds none."""
        return next((process.rank for process in self if process.peer is peer), None)

    def any_peer(self) -> Peer | None:
        """Return any connected worker; None if there is none."""
        return next((process.peer for process in self if process.peer is not None), None)

    def tell(self, rank: JobRank, message: ToLocal) -> None:
        """Send a message to a rank's process. One that is not connected yet gets its orders when it connects."""
        process = self._held.get(rank)
        if process is not None and process.peer is not None:
            process.peer.send(message)

    def tell_all(self, message: ToLocal) -> set[JobRank]:
        """Send a message to every connected process, and return their ranks."""
        return {process.rank for process in self if process.peer is not None and process.peer.send(message)}


def _may_be(peer: Peer, process: RankProcess) -> bool:
    """Return whether a peer may be the rank: the process itself, or the first one in a wrapper's session."""
    if peer.pid == process.pid:
        return True
    if not process.wrapped:
        return False
    known = process.peer
    return session_of(peer.pid) == process.pid if known is None else known.pid == peer.pid  # it has connected anew


def _owns(peer: Peer, box: Box) -> bool:
    """Return whether a box belongs to a peer, or to no process yet."""
    try:
        return box.read().owner_pid in (0, peer.pid)
    except ShimError:
        return False
