"""A process takes a rank of a job: it finds or starts the rank's agent, and gets its link and its process groups.

Rules:

1. The process is somebody else's. Its environment stays as it is; what the agent says is read and kept.
2. The first process of a rank of a job that forms begins at once. Any later one waits until the manager wants it, and
   is a newcomer then: its set-up runs alone, until it reaches the first resilient function.
3. torch may have been imported before, but no process group may have been made.
"""

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from taskd.adaptors.actors.door import DoorAnswer, knock
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
    env = _env_of(ticket, wanted, time.monotonic() + timeout_s)
    agent = _install(env, ticket.world_size)
    _attached = (os.getpid(), ticket, agent)
    return agent


def _env_of(ticket: Ticket, rank: JobRank, until_s: float) -> dict[str, str]:
    """The variables of this process, once it is wanted."""
    while True:
        answer = knock(ticket.name(rank))
        if answer is None:
            _start_side(ticket, rank)
            answer = knock(ticket.name(rank))
        env = None if answer is None else answer.env or _await_rank(answer, until_s)
        if env is not None:
            return env
        if time.monotonic() >= until_s:
            raise LinkError(
                f"nobody wanted a new process for rank {rank} until now, expected the former one to be lost; end that "
                "first, and see the manager's journal"
            )


def _await_rank(answer: DoorAnswer, until_s: float) -> dict[str, str] | None:
    """Wait as a standby does; None if the agent has gone meanwhile, or time is over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            link.connect(answer.socket)
            link.sendall(encode(Hello(role="standby", pid=os.getpid())))
            while (left_s := until_s - time.monotonic()) > 0:
                poller = select.poll()
                poller.register(link, select.POLLIN)
                if not poller.poll(left_s * 1000):
                    return None
                frame = receive_packet(link)
                if not frame:
                    return None
                message = decode_to_local(frame)
                if isinstance(message, Become):
                    return {os.fsdecode(name): os.fsdecode(value) for name, value in message.env.items()}
        except OSError:
            pass
    return None


def _start_side(ticket: Ticket, rank: JobRank) -> None:
    """Start the rank's agent. Raises `LinkError` if it cannot serve."""
    hears, told = os.pipe()
    command = [sys.executable, "-m", "taskd.adaptors.actors", str(rank), str(told)]
    env = {name: value for name, value in own_environment().items() if name != "LD_PRELOAD"}
    with open(hears, "rb", buffering=0) as ear:
        with contextlib.closing(open(told, "wb")):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**env, "PYTHONSAFEPATH": "1"},
                pass_fds=(told,),
                start_new_session=True,
            )
        process.communicate(f"{ticket.to_json()}\n".encode())
        poller = select.poll()
        poller.register(ear, select.POLLIN)
        said = ear.read(_ERROR_BYTES) if poller.poll(START_S * 1000) else b""
    if said and said != READY.encode() and knock(ticket.name(rank)) is None:
        raise LinkError(f"the agent of rank {rank} could not begin: {said.decode(errors='replace')}")
    if not said:
        raise LinkError(f"the agent of rank {rank} has ended at its start: {' '.join(command[:3])}; see its output")


def _install(env: dict[str, str], world_size: int) -> Agent:
    """Make this process the rank's: black box, link, process groups."""
    from taskd.adaptors.seams.parts import IN_RANK, IN_WORKER
    from taskd.adaptors.torchrun.modules import installed_modules
    from taskd.adaptors.training.session import install
    from taskd.runtime.worker.worker import start

    config = WorkerConfig.from_environment(env)
    if config is None:
        raise LinkError(f"the agent has sent no variables of a rank, but {json.dumps(sorted(env))}: a bug in taskd")
    link = start(config, installed_modules)
    for part in IN_RANK:
        if part.misfit() and config.rank == 0:
            logger.warning("%s", part.misfit())
    misfit = IN_WORKER.misfit()
    if misfit:
        link.refuse(no_rebuild=misfit, no_newcomer=misfit)
    else:
        install(link, world_size)
    return Agent(config.rank, world_size, config.joins)
