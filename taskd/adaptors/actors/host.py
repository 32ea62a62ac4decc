"""The agent's port to a rank whose process somebody else has started: it can be watched and killed, and no more.

Rules:

1. The process is no child of ours. Its exit status is known only if its end was observed.
2. A process that was released (its resilient function has returned, as all others' have) has ended well, however it
   ends.
3. Only the process itself is signalled: its process group may be its starter's.
"""

import logging
import signal
from collections.abc import Callable, Mapping
from enum import Enum
from signal import Signals
from typing import Final

from taskd.errors import RecoveryError
from taskd.runtime.agent.ports import Command, Logs
from taskd.runtime.system.pidfd import ProcessHandle
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from taskd.wire.messages import Stage

logger = logging.getLogger(__name__)
LOCAL: Final = LocalRank(0)
UNSEEN: Final = 255
"""Status of a process whose end nobody has observed."""


class Leaving(Enum):
    """The reason why an agent has nothing left to do."""

    ENDED_WELL = "its rank has ended well"
    JOB_ENDED = "the job has ended well"
    GIVEN_UP = "the job was given up"


class ActorHost:
    """Implementation of `taskd.runtime.agent.ports.WorkerHost` for one rank. `leave` is called once, at the end."""

    def __init__(self, rank: JobRank, world_size: int, leave: Callable[[Leaving], None]) -> None:
        self._rank, self._world_size = rank, world_size
        self._leave = leave
        self._process: ProcessHandle | None = None
        self._seen: int | None = None
        """Exit status of the present process, as far as it was observed."""
        self.leads = True
        """True if a manager decides about the rank."""

    # The rank

    @property
    def local_ranks(self) -> tuple[LocalRank, ...]:
        """The only local rank."""
        return (LOCAL,)

    def rank_of(self, _local_rank: LocalRank) -> JobRank:
        """Return its rank in the job."""
        return self._rank

    def pid(self, _local_rank: LocalRank) -> int:
        """Return the id of the process that holds the rank."""
        return -1 if self._process is None else self._process.pid

    def environment(self, _local_rank: LocalRank) -> dict[str, str]:
        """Return the variables that torchrun would set for the rank.

        The process reads them, and leaves its environment as it is.
        """
        rank, size = str(self._rank), str(self._world_size)
        return {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": rank,
            "GROUP_WORLD_SIZE": size,
        }

    def command(self, _local_rank: LocalRank) -> Command:
        """Return a command that allows a process which has come by itself to become the rank."""
        return Command((), python=True)

    def assign(self, place: NodeRank) -> None:
        """Take the rank of the place."""
        self._rank = JobRank(place)

    # Its process

    def open_logs(self, _local_rank: LocalRank, _incarnation: int) -> Logs:
        """Return no logs: the process's output goes to the same place as before."""
        return Logs(None, None, None)

    def spawn(self, _local_rank: LocalRank, _env: Mapping[str, str], _logs: Logs) -> int:
        """Raise `RecoveryError`: nobody here starts a process."""
        raise RecoveryError(
            f"no process has asked for rank {self._rank}, expected one from whoever starts them; let Ray restart the "
            "actor (max_restarts), or start another that calls taskd.agent with this rank"
        )

    def adopt(self, _local_rank: LocalRank, pid: int, _env: Mapping[str, str], _logs: Logs) -> None:
        """Let a process that has requested the rank hold it from now on. The one before is fenced."""
        self.kill(LOCAL, signal.SIGKILL)
        self.hold(pid)

    def hold(self, pid: int) -> None:
        """Record that this process holds the rank."""
        self.close()
        self._process, self._seen = ProcessHandle(pid), None

    def close(self) -> None:
        """Stop watching its process."""
        if self._process is not None:
            self._process.close()

    def kill(self, _local_rank: LocalRank, number: Signals) -> None:
        """Signal the process alone. Nothing happens if it is gone."""
        if self._process is not None:
            self._process.kill(number)

    cleaning: tuple[int, ...] = ()
    """Always empty: the starter of the processes also ends what they leave."""

    def exit_status(self, _local_rank: LocalRank) -> int | None:
        """Return None while the process runs; else the observed status, or `UNSEEN`."""
        if self._runs():
            return None
        return UNSEEN if self._seen is None else self._seen

    def judge(self, _local_rank: LocalRank, status: int | None, stage: Stage) -> int | None:
        """Return how the process has ended, by the facts known now; None if it is unknown so far."""
        if stage is Stage.RELEASED and (status is not None or not self._runs()):
            self._seen = 0
            self._leave(Leaving.ENDED_WELL)
        elif self._seen is None and status != UNSEEN:
            self._seen = status
        return status if self._seen is None else self._seen

    def _runs(self) -> bool:
        return self._process is not None and self._process.runs()

    def start_template(self, _env: Mapping[str, str]) -> int:
        """Raise `RecoveryError`: an actor's agent has no template."""
        raise RecoveryError("an agent of an actor was asked for a template, expected none: a bug in taskd")

    def reap_standbys(self) -> tuple[int, ...]:
        """Return nothing: there are no children."""
        return ()

    # The manager

    def manage(self) -> None:
        """Let a manager decide about the rank."""
        self.leads = True

    def stock(self) -> None:
        """Let nobody decide about the rank: at a fault the processes get their own errors."""
        self.leads = False

    @property
    def deserted(self) -> bool:
        """True if the rank has no process, and no manager could let another one take it."""
        return not self.leads and not self._runs()

    def dismiss(self) -> None:
        """Leave, because the job has ended well."""
        self._leave(Leaving.JOB_ENDED)

    def give_up(self, reason: str) -> None:
        """End the rank's process; its starter detects that, and the log has the reason."""
        logger.error("rank %d ends: %s", self._rank, reason)
        self.kill(LOCAL, signal.SIGKILL)
        self._leave(Leaving.GIVEN_UP)
