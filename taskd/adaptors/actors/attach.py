"""The way of a process to a rank: it finds or starts the rank's agent, and gets its link and its process groups.

Rules:

1. The process is somebody else's. Its environment stays as it is; the agent's variables are read and kept.
2. While a job forms, the first process of a rank starts at once. Any later one waits until the manager requests it. It
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
"""Time after which an agent that has sent nothing has failed, in seconds."""
_REACH_S: Final = 5.0
"""The least time for an agent to start or to answer, in seconds, however soon the caller's timeout is."""
_KILL_S: Final = 1.0
"""Time after SIGKILL at which an agent that has not ended is left behind, in seconds."""
_ERROR_BYTES: Final = 4096


@dataclass(frozen=True)
class Agent:
    """The data of a process that holds a rank.

    Attributes:
        rank, world_size: in the job.
        joins: True if it joins a running job, in place of a process that was lost.
    """

    rank: int
    world_size: int
    joins: bool


class Links:
    """Connections of this process to its agent: first its present link, then a new one if the script closes that."""

    def __init__(self, ticket: Ticket, rank: JobRank, first: socket.socket) -> None:
        self._ticket, self._rank = ticket, rank
        self._first: socket.socket | None = first

    def __call__(self) -> socket.socket:
        """Return a connection. Raise `LinkError` if the agent has gone."""
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
        ConfigError: the job has no such rank, or this process holds another one.
        LinkError: no agent can be had, or the manager has not requested this process within `timeout_s`.
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
    """Return the variables of this process, once it is wanted, and its link to the agent."""
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
    """Wait as a standby does; return nothing if the agent has gone meanwhile, or time is over."""
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
    """Start the rank's agent; return the link to it, and its answer.

    Raises:
        LinkError: the agent cannot serve, or does not start in time.
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
    found = knock(ticket.entrance(rank), until_s)  # to an agent that another process has started meanwhile
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
    """Send an agent's process its ticket. Return False if it does not read that in time: it is killed."""
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
    """Make this process the rank's: install black box, link and process groups."""
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
