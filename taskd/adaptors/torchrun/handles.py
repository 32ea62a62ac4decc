"""torch's handles on the processes of this node's ranks, for two threads: the agent's, and torchrun's own.

Rules:

1. torch's `subprocess_handlers` stays the truth: by local rank, the process that holds the rank, dead or alive.
2. A process is reaped and signalled under the lock, so that nobody signals one that another thread has just reaped.
   torch itself does not know of the lock: once a thread ends the ranks, it alone reaps.
3. With `sweeps`, what a failed process leaves in its group is killed before that is reaped: the group's number is its
   own until then. What cleans up behind it gets the time for that (`cleaners.py`).
"""

import contextlib
import subprocess
import threading
from signal import SIGKILL, Signals

from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from taskd.adaptors.torchrun.children import OrphanGroups, has_failed, signal_group, status_of
from taskd.adaptors.torchrun.cleaners import Cleaners
from taskd.runtime.agent.deaths import ending_status
from taskd.wire.kinds import LocalRank


class RankHandles:
    """Those of one worker group. With `stand_ins` the first processes hold no ranks, and how they end means nothing."""

    def __init__(self, context: SubprocessContext, *, stand_ins: bool) -> None:
        self._context = context
        self.sweeps = True
        self._lock = threading.Lock()
        self._closer: int | None = None
        """The thread that ends the ranks, and alone reaps them then."""
        self._ended_by_us: set[LocalRank] = set(map(LocalRank, context.subprocess_handlers)) if stand_ins else set()
        """Local ranks whose present process was."""
        self._former: list[SubprocessHandler] = []
        """Of processes that were fenced, until they are collected."""
        self._groups = OrphanGroups()
        self._cleaners = Cleaners()

    def kill(self, local_rank: LocalRank, signal: Signals) -> None:
        """Signal the rank's whole process group, unless its process has been reaped."""
        with self._lock:
            process = self._context.subprocess_handlers[local_rank].proc
            if process.returncode is None:
                if ending_status(process.pid) is None:
                    self._ended_by_us.add(local_rank)
                if signal == SIGKILL:
                    self._cleaners.kill_group(process.pid)
                else:
                    signal_group(process.pid, signal)

    def exit_status(self, local_rank: LocalRank) -> int | None:
        """How the rank's process ended, None while it runs."""
        with self._lock:
            return self._collect(self._context.subprocess_handlers[local_rank])

    def _collect(self, handler: SubprocessHandler) -> int | None:
        process = handler.proc
        if process.returncode is not None:
            return process.returncode
        if self._closer not in (None, threading.get_ident()):
            return status_of(process.pid)  # torch asks whether it runs and then signals it: it must not go meanwhile
        if self.sweeps and has_failed(process.pid):
            self._cleaners.kill_group(process.pid)
        status = process.poll()
        if status is not None:
            self._groups.add(process.pid)
        return status

    def fence(self, local_rank: LocalRank) -> None:
        """Kill the rank's process, should it still run: another takes its rank. It is collected later."""
        handler = self._context.subprocess_handlers[local_rank]
        with self._lock:
            if self._collect(handler) is None:
                self._cleaners.kill_group(handler.proc.pid)
                self._former.append(handler)
        for stream in (handler._stdout, handler._stderr):
            if stream is not None:
                stream.close()

    def install(self, local_rank: LocalRank, handler: SubprocessHandler) -> None:
        """Another process holds the rank from now on."""
        with self._lock:
            self._context.subprocess_handlers[local_rank] = handler
            self._context._running_local_ranks.add(local_rank)
            self._context._failures.pop(local_rank, None)
            self._ended_by_us.discard(local_rank)

    def collect_former(self) -> None:
        """Reap what was fenced, and what the dead have left."""
        with self._lock:
            self._former = [handler for handler in self._former if self._collect(handler) is None]
            self._cleaners.look()
        self._groups.reap()

    @property
    def has_former(self) -> bool:
        """Whether a fenced process is not collected yet, or one that cleans up behind a rank."""
        return bool(self._former or self.cleaning)

    @property
    def cleaning(self) -> tuple[int, ...]:
        """Processes that clean up behind dead ranks."""
        with self._lock:
            return self._cleaners.pids

    def await_the_dying(self, timeout_s: float) -> None:
        """taskd hears of a death before the process can be reaped; torch is to see it first, as the root cause.

        Each is reaped here, under the lock: torch's own look says "alive" while another thread is about to reap.
        """
        for local_rank, handler in self._context.subprocess_handlers.items():
            if handler.proc.returncode is None and ending_status(handler.proc.pid) is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    handler.proc.wait(timeout_s)
            self.exit_status(LocalRank(local_rank))

    def claim_living(self) -> list[LocalRank]:
        """Local ranks whose process still runs, and is about to be ended by us."""
        living = [
            local for local in map(LocalRank, self._context.subprocess_handlers) if self.exit_status(local) is None
        ]
        self._ended_by_us.update(living)
        return living

    def ended_by_us(self, local_rank: LocalRank) -> bool:
        """Whether the rank's process was ended by us, and not by a failure of its own."""
        return local_rank in self._ended_by_us

    def end_here(self) -> None:
        """The calling thread is about to end the ranks."""
        with self._lock:
            self._closer = threading.get_ident()
            self._cleaners.release()

    @property
    def ending(self) -> bool:
        """Whether a thread ends the ranks."""
        return self._closer is not None
