"""A process takes a rank of a job: it finds or starts the rank's agent, and gets its link and its process groups.

Rules:

1. The process is somebody else's. Its environment stays as it is; what the agent says is read and kept.
2. The first process of a rank of a job that forms begins at once. Any later one waits until the manager wants it, and
   is a newcomer then: its set-up runs alone, until it reaches the first resilient function.
3. torch may have been imported before, but no process group may have been made.
"""

import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from taskd.adaptors.actors.door import answer, knock
from taskd.adaptors.actors.side import READY
from taskd.adaptors.actors.ticket import Ticket
from taskd.config.process import own_environment
from taskd.config.worker import WorkerConfig
from taskd.errors import ConfigError, LinkError
from taskd.runtime.system.packets import receive_packet
from taskd.wire.codec import decode_to_local, encode
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Hello
from taskd.wire.standbys import Become

logger = logging.getLogger(__name__)
START_S: Final = 30.0
"""An agent that has not said anything by then has failed."""
_REACH_S: Final = 5.0
"""The least time for it to begin, or to answer, however soon the caller wants to know."""
_KILL_S: Final = 1.0
"""One that has not ended so long after SIGKILL is left behind."""
_ERROR_BYTES: Final = 4096


@dataclass(frozen=True)
class Agent:
    """What a process has that holds a rank.

    Attributes:
        rank, world_size: in the job.
        joins: whether it comes into a job that lives, in place of a process that was lost.
    """

    rank: int
    world_size: int
    joins: bool


class Links:
    """Connects this process to its agent: first by the link that it has, and anew where the script closes that."""

    def __init__(self, ticket: Ticket, rank: JobRank, first: socket.socket) -> None:
        self._ticket, self._rank = ticket, rank
        self._first: socket.socket | None = first

    def __call__(self) -> socket.socket:
        """Return a connection. Raises `LinkError` if the agent has gone."""
        link, self._first = self._first, None
        if link is not None:
            return link
        found = knock(self._ticket.entrance(self._rank))
        if found is None:
            raise LinkError(f"the agent of rank {self._rank} is gone, expected it beside this process; see its output")
        return found[0]


_attached: tuple[int, Ticket, Agent] | None = None


def attach(ticket: Ticket, rank: int, timeout_s: float) -> Agent:
    """Take the rank. A process that has it already keeps it.

    Raises:
        ConfigError: the job has no such rank, or this process another one.
        LinkError: no agent can be had, or nobody wanted this process for so long.
        RebuildError: this process has a process group already.
    """
    global _attached  # noqa: PLW0603 - one rank per process
    wanted = ticket.check(rank)
    if _attached is not None and _attached[0] == os.getpid():
        _, former, agent = _attached
        if (former, agent.rank) != (ticket, rank):
            raise ConfigError(
                f"this process holds rank {agent.rank} of job {former.job_id}, expected none; start another process"
            )
        return agent
    env, link = _enter(ticket, wanted, time.monotonic() + timeout_s)
    agent = _install(env, ticket.world_size, Links(ticket, wanted, link))
    _attached = (os.getpid(), ticket, agent)
    return agent


def _enter(ticket: Ticket, rank: JobRank, until_s: float) -> tuple[dict[str, str], socket.socket]:
    """The variables of this process, once it is wanted, and its link to the agent."""
    while True:
        reach_s = max(until_s, time.monotonic() + _REACH_S)
        link, env = knock(ticket.entrance(rank), reach_s) or _start_side(ticket, rank, reach_s)
        env = env or _await_rank(link, until_s)
        if env:
            return env, link
        link.close()
        if time.monotonic() >= until_s:
            raise LinkError(
                f"nobody wanted a new process for rank {rank} until now, expected the former one to be lost; end that "
                "first, and see the manager's journal"
            )


def _await_rank(link: socket.socket, until_s: float) -> dict[str, str]:
    """Wait as a standby does; nothing if the agent has gone meanwhile, or time is over."""
    poller = select.poll()
    poller.register(link, select.POLLIN)
    try:
        link.sendall(encode(Hello(role="standby", pid=os.getpid())))
        while (left_s := until_s - time.monotonic()) > 0 and poller.poll(left_s * 1000):
            frame = receive_packet(link)
            if not frame:
                break
            message = decode_to_local(frame)
            if isinstance(message, Become):
                return {os.fsdecode(name): os.fsdecode(value) for name, value in message.env.items()}
    except OSError:
        pass
    return {}


def _start_side(ticket: Ticket, rank: JobRank, until_s: float) -> tuple[socket.socket, dict[str, str]]:
    """Start the rank's agent; the link to it, and its answer.

    Raises:
        LinkError: it cannot serve, or does not begin in time.
    """
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "taskd.adaptors.actors", str(rank), str(theirs.fileno())]
    env = {name: value for name, value in own_environment().items() if name != "LD_PRELOAD"}
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**env, "PYTHONSAFEPATH": "1"},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    late, said = not _send_ticket(process, ticket, until_s), b""
    try:
        own.settimeout(max(0.0, min(START_S, until_s - time.monotonic())))
        said = own.recv(_ERROR_BYTES)
        if said == READY.encode() and (variables := answer(own, until_s)) is not None:
            return own, variables
    except (TimeoutError, BlockingIOError):
        late = True
    except OSError:
        pass
    own.close()
    found = knock(ticket.entrance(rank), until_s)  # of an agent that another process has started meanwhile
    if found is None and late:
        raise LinkError(
            f"the agent of rank {rank} has not begun in time, expected it within {START_S:g} s and this call's "
            f"timeout: {' '.join(command[:3])}; see its output, and the load of this machine"
        )
    if found is None:
        raise LinkError(
            f"the agent of rank {rank} could not begin: {said.decode(errors='replace')}"
            if said not in (b"", READY.encode())
            else f"the agent of rank {rank} has ended at its start: {' '.join(command[:3])}; see its output"
        )
    return found


def _send_ticket(process: "subprocess.Popen[bytes]", ticket: Ticket, until_s: float) -> bool:
    """Start an agent's own process, by its ticket. False: it does not take that in time, and is killed."""
    try:
        process.communicate(f"{ticket.to_json()}\n".encode(), timeout=max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdin is not None:
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
        return False
    return True


def _install(env: dict[str, str], world_size: int, links: Links) -> Agent:
    """Make this process the rank's: black box, link, process groups."""
    from taskd.adaptors.seams.parts import IN_RANK, IN_WORKER
    from taskd.adaptors.torchrun.modules import installed_modules
    from taskd.adaptors.training.runtime import install
    from taskd.runtime.worker.worker import start

    config = WorkerConfig.from_environment(env)
    if config is None:
        raise LinkError(f"the agent has sent no variables of a rank, but {json.dumps(sorted(env))}: a bug in taskd")
    link = start(config, installed_modules, links)
    for part in IN_RANK:
        if part.misfit() and config.rank == 0:
            logger.warning("%s", part.misfit())
    misfit = IN_WORKER.misfit()
    if misfit:
        link.refuse(no_rebuild=misfit, no_newcomer=misfit)
    else:
        install(link, world_size)
    return Agent(config.rank, world_size, config.joins)
