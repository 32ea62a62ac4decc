"""The agent's port to a rank whose process somebody else has started: it can be watched and killed, and no more.

Rules:

1. It is no child of ours: how it has ended is known only if it was seen while it ended.
2. A process that was let go (its resilient function has returned, with all others') has ended well, however it ends.
3. Only the process itself is signalled: its process group may be that of whoever has started it.
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
"""The status of a process whose end nobody has seen."""


class Leaving(Enum):
    """Why an agent has nothing left to do."""

    ENDED_WELL = "its rank has ended well"
    JOB_ENDED = "the job has ended well"
    GIVEN_UP = "the job was given up"


class ActorHost:
    """Implements `taskd.runtime.agent.ports.WorkerHost` for one rank. `leave` is called once, when all is over."""

    def __init__(self, rank: JobRank, world_size: int, leave: Callable[[Leaving], None]) -> None:
        self._rank, self._world_size = rank, world_size
        self._leave = leave
        self._process: ProcessHandle | None = None
        self._seen: int | None = None
        """How the present process ends, as far as that was seen."""
        self.leads = True
        """Whether a manager decides what happens to the rank."""

    # What the rank is

    @property
    def local_ranks(self) -> tuple[LocalRank, ...]:
        """The one."""
        return (LOCAL,)

    def rank_of(self, _local_rank: LocalRank) -> JobRank:
        """Its rank in the job."""
        return self._rank

    def pid(self, _local_rank: LocalRank) -> int:
        """The process that holds the rank."""
        return -1 if self._process is None else self._process.pid

    def environment(self, _local_rank: LocalRank) -> dict[str, str]:
        """What torchrun would say of the rank. The process does not take it as its environment: it reads it."""
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
        """A process that has come by itself can become the rank."""
        return Command((), python=True)

    def assign(self, place: NodeRank) -> None:
        """The rank is that of the place."""
        self._rank = JobRank(place)

    # Its process

    def open_logs(self, _local_rank: LocalRank, _incarnation: int) -> Logs:
        """Its output goes where it went before."""
        return Logs(None, None, None)

    def spawn(self, _local_rank: LocalRank, _env: Mapping[str, str], _logs: Logs) -> int:
        """Raises `RecoveryError`."""
        raise RecoveryError(
            f"no process has asked for rank {self._rank}, expected one from whoever starts them; let Ray restart the "
            "actor (max_restarts), or start another that calls taskd.agent with this rank"
        )

    def adopt(self, _local_rank: LocalRank, pid: int, _env: Mapping[str, str], _logs: Logs) -> None:
        """A process that has asked for the rank holds it from now on. The one before is fenced."""
        self.kill(LOCAL, signal.SIGKILL)
        self.hold(pid)

    def hold(self, pid: int) -> None:
        """This process holds the rank."""
        self.close()
        self._process, self._seen = ProcessHandle(pid), None

    def close(self) -> None:
        """Nothing is known of its process any more."""
        if self._process is not None:
            self._process.close()

    def kill(self, _local_rank: LocalRank, number: Signals) -> None:
        """Signal the process alone. Nothing happens if it is gone."""
        if self._process is not None:
            self._process.kill(number)

    cleaning: tuple[int, ...] = ()
    """Whoever starts the processes also ends what they leave."""

    def exit_status(self, _local_rank: LocalRank) -> int | None:
        """None while it runs; else what was seen, or `UNSEEN`."""
        if self._runs():
            return None
        return UNSEEN if self._seen is None else self._seen

    def judge(self, _local_rank: LocalRank, status: int | None, stage: Stage) -> int | None:
        """How the process has ended, by what is known of it now; None if it is not known yet."""
        if stage is Stage.RELEASED and (status is not None or not self._runs()):
            self._seen = 0
            self._leave(Leaving.ENDED_WELL)
        elif self._seen is None and status != UNSEEN:
            self._seen = status
        return status if self._seen is None else self._seen

    def _runs(self) -> bool:
        return self._process is not None and self._process.runs()

    def start_template(self, _env: Mapping[str, str]) -> int:
        """Raises `RecoveryError`."""
        raise RecoveryError("an agent of an actor was asked for a template, expected none: a bug in taskd")

    def reap_standbys(self) -> tuple[int, ...]:
        """There are no children."""
        return ()

    # Who decides

    def manage(self) -> None:
        """A manager does."""
        self.leads = True

    def stock(self) -> None:
        """Nobody: at a fault the processes get their own errors."""
        self.leads = False

    @property
    def deserted(self) -> bool:
        """Whether the rank has no process, and nobody would say that another may take it."""
        return not self.leads and not self._runs()

    def dismiss(self) -> None:
        """The job has ended well."""
        self._leave(Leaving.JOB_ENDED)

    def give_up(self, reason: str) -> None:
        """The rank's process ends; whoever has started it sees that, and the log has the reason."""
        logger.error("rank %d ends: %s", self._rank, reason)
        self.kill(LOCAL, signal.SIGKILL)
        self._leave(Leaving.GIVEN_UP)
