"""The process beside a rank's: its agent, which the rank's first process starts, and which outlives that process.

Rules:

1. It is no child of the rank's process, and is not in its session. So an end of that process with all of its children
   does not end this one.
2. It ends when its rank has ended well, when the job has, or when the rank has no process and no manager answers.
3. It serves one rank, and does not import torch. The store of new worlds is where the manager is.
4. Its starter holds the other end of a pair of sockets, which nobody else can reach. All others come by the door.
"""

import os
import select
import socket
import sys
from typing import Final

from taskd.adaptors.actors.door import Door, Visitor
from taskd.adaptors.actors.host import LOCAL, ActorHost, Leaving
from taskd.adaptors.actors.pool import ActorPool
from taskd.adaptors.actors.ticket import Ticket
from taskd.config.agent import AgentConfig
from taskd.config.process import own_environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.security import Security
from taskd.errors import LinkError
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.ports import NodeIdentity, Outlook
from taskd.runtime.system.own_sockets import peer_of
from taskd.wire.kinds import JobRank, NodeRank

READY: Final = "ready"
_MANAGER_WAIT_S: Final = 3.0
"""Time for the manager's first answer, in seconds. A manager that is lost later has ten times as long."""
_LOOK_S: Final = 1.0


class ActorAgent(NodeAgent):
    """The runtime of a node whose one process comes by itself. No path leads to it: see `admit`."""

    pool = ActorPool
    listens = False

    def admit(self, link: socket.socket) -> None:
        """Adopt a link whose other end is a process that has proved itself."""
        if not self._loop.post(lambda: self._server.adopt(link)):
            link.close()  # this agent has ended


class SideAgent:
    """The agent of one rank, and the door by which the rank's processes come."""

    def __init__(self, ticket: Ticket, rank: JobRank) -> None:
        """Start the agent. Raise `LinkError` if the rank has one on this machine, or the manager does not answer."""
        self._ticket, self._rank = ticket, rank
        self._door = Door(ticket.entrance(rank))
        self._over: Leaving | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        config = _config(ticket)
        self._agent = ActorAgent(config, lambda: ticket.store)
        self._host = ActorHost(rank, ticket.world_size, self._leave)
        self._agent.ask(NodeRank(rank), 1, 0, _NoTemplates())
        outlook = self._agent.outlook(None)
        if outlook is Outlook.UNKNOWN:
            self._close()
            raise LinkError(f"no manager answers at {config.manager}: it has ended, or this host does not reach it")
        self._forms = outlook is Outlook.FORMING
        if not self._forms:
            self._begin(candidate=True)

    def serve(self) -> None:
        """Let the rank's processes in until all is over."""
        poller = select.poll()
        poller.register(self._door, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while self._over is None and not self._host.deserted:
            ready = [fd for fd, _ in poller.poll(_LOOK_S * 1000)]
            for visitor in self._door.let_in() if self._door.fileno() in ready else ():
                self.receive(visitor)
        self._close()

    def receive(self, visitor: Visitor) -> None:
        """Answer a process: the first one of a job that forms starts as the rank, any other waits to become it."""
        begins = self._forms
        variables = self._host.environment(LOCAL) | self._agent.worker_environment(LOCAL) if begins else {}
        if not visitor.tell(variables):
            return
        if begins:
            self._forms = False
            self._host.hold(visitor.pid)
            self._begin(candidate=False)
        self._agent.admit(visitor.link)

    def _begin(self, *, candidate: bool) -> None:
        identity = NodeIdentity(
            node_rank=NodeRank(self._rank),
            node_count=self._ticket.world_size,
            ranks=(self._rank,),
            given_master_addr=None,
            max_restarts=self._ticket.max_restarts,
            candidate=candidate,
        )
        self._agent.started(self._host, identity)

    def _leave(self, why: Leaving) -> None:
        if self._over is None:
            self._over = why
            os.eventfd_write(self._wake, 1)

    def _close(self) -> None:
        self._door.close()
        self._agent.stopping()
        self._agent.stop()
        self._host.close()


class _NoTemplates:
    """Stand-in for warm processes, of which there are none to start."""

    def start(self, env: object) -> int:
        raise NotImplementedError

    def reap(self) -> tuple[int, ...]:
        return ()


def _config(ticket: Ticket) -> AgentConfig:
    return AgentConfig(
        job_id=ticket.job_id,
        manager=ticket.manager,
        security=Security(secret=ticket.secret.encode(), job_id=ticket.job_id),
        run_dir=run_dir(Source(own_environment())),
        standbys=0,
        preload=(),
        learn_modules=False,
        heartbeat_s=ticket.heartbeat_s,
        manager_wait_s=_MANAGER_WAIT_S,
    )


def main(argv: list[str]) -> int:
    """Run the agent of a rank. Arguments: the rank, and the descriptor of the socket to this process's starter.

    The socket receives `READY` or an error's text; then it is the starter's link. The ticket comes by stdin.
    """
    rank, link = JobRank(int(argv[0])), socket.socket(fileno=int(argv[1]))
    ticket = Ticket.from_json(sys.stdin.readline())
    if os.fork():
        os._exit(0)  # the rank's process reaps this one at once, and has no child then
    link.set_inheritable(False)
    try:
        agent = SideAgent(ticket, rank)
    except Exception as error:
        link.sendall(f"{type(error).__name__}: {error}".encode())
        if isinstance(error, LinkError):
            return 1
        raise
    link.sendall(READY.encode())
    pid, _ = peer_of(link)
    agent.receive(Visitor(pid, link))
    agent.serve()
    return 0
