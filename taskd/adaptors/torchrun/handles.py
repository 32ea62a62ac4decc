"""torch's handles on the processes of this node's ranks, for two threads: the agent's, and torchrun's own.

Rules:

1. torch's `subprocess_handlers` stays authoritative: it holds, by local rank, the rank's process, dead or alive.
2. A process is reaped and signalled under the lock, so no thread signals a process that another one has just reaped.
   torch itself does not use the lock. Once a thread ends the ranks, it alone reaps.
3. With `sweeps`, the rest of a failed process's group is killed before the process is reaped: until then the group's
   number is its own. Processes that clean up get time for that (`cleaners.py`).
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
    """Handles of one worker group.

    With `stand_ins` the first processes hold no ranks, and their exit statuses mean nothing.
    """

    def __init__(self, context: SubprocessContext, *, stand_ins: bool) -> None:
        self._context = context
        self.sweeps = True
        self._lock = threading.Lock()
        self._closer: int | None = None
        """Thread that ends the ranks; from then on it alone reaps them."""
        self._ended_by_us: set[LocalRank] = set(map(LocalRank, context.subprocess_handlers)) if stand_ins else set()
        """Local ranks whose present process we have ended, stand-ins included."""
        self._former: list[SubprocessHandler] = []
        """Handlers of fenced processes that are not collected yet."""
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
        """Return the exit status of the rank's process, None while it runs."""
        with self._lock:
            return self._collect(self._context.subprocess_handlers[local_rank])

    def _collect(self, handler: SubprocessHandler) -> int | None:
        process = handler.proc
        if process.returncode is not None:
            return process.returncode
        if self._closer not in (None, threading.get_ident()):
            return status_of(process.pid)  # torch polls it and then signals it: it must not be reaped in between
        if self.sweeps and has_failed(process.pid):
            self._cleaners.kill_group(process.pid)
        status = process.poll()
        if status is not None:
            self._groups.add(process.pid)
        return status

    def fence(self, local_rank: LocalRank) -> None:
        """Kill the rank's process if it still runs, because another takes its rank. It is collected later."""
        handler = self._context.subprocess_handlers[local_rank]
        with self._lock:
            if self._collect(handler) is None:
                self._cleaners.kill_group(handler.proc.pid)
                self._former.append(handler)
        for stream in (handler._stdout, handler._stderr):
            if stream is not None:
                stream.close()

    def install(self, local_rank: LocalRank, handler: SubprocessHandler) -> None:
        """Record another process as the holder of the rank."""
        with self._lock:
            self._context.subprocess_handlers[local_rank] = handler
            self._context._running_local_ranks.add(local_rank)
            self._context._failures.pop(local_rank, None)
            self._ended_by_us.discard(local_rank)

    def collect_former(self) -> None:
        """Reap fenced processes and the members that dead ones have left in their groups."""
        with self._lock:
            self._former = [handler for handler in self._former if self._collect(handler) is None]
            self._cleaners.look()
        self._groups.reap()

    @property
    def has_former(self) -> bool:
        """True while a fenced process is not collected, or a process cleans up behind a rank."""
        return bool(self._former or self.cleaning)

    @property
    def cleaning(self) -> tuple[int, ...]:
        """Pids of processes that clean up behind dead ranks."""
        with self._lock:
            return self._cleaners.pids

    def await_the_dying(self, timeout_s: float) -> None:
        """Wait for each process that is about to end, so that torch finds the root cause first.

        taskd detects a death before the process can be reaped. Each process is reaped here, under the lock: torch's own
        poll reports "alive" while another thread is about to reap. `timeout_s` limits the wait for one process.
        """
        for local_rank, handler in self._context.subprocess_handlers.items():
            if handler.proc.returncode is None and ending_status(handler.proc.pid) is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    handler.proc.wait(timeout_s)
            self.exit_status(LocalRank(local_rank))

    def claim_living(self) -> list[LocalRank]:
        """Return the local ranks whose process still runs, and record that we end them."""
        living = [
            local for local in map(LocalRank, self._context.subprocess_handlers) if self.exit_status(local) is None
        ]
        self._ended_by_us.update(living)
        return living

    def ended_by_us(self, local_rank: LocalRank) -> bool:
        """Return whether we ended the rank's process, as opposed to a failure of its own."""
        return local_rank in self._ended_by_us

    def end_here(self) -> None:
        """Record that the calling thread is about to end the ranks."""
        with self._lock:
            self._closer = threading.get_ident()
            self._cleaners.release()

    @property
    def ending(self) -> bool:
        """True once a thread ends the ranks."""
        return self._closer is not None
