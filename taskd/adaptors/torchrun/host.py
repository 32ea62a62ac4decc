"""torchrun's side of the port `WorkerHost`: the processes of this node's ranks, one by one replaceable.

Rules:

1. torch's own objects stay authoritative. Its handle holds a rank's process (`handles.py`), and the worker group holds
   the pid. Both change together under `lock`, which torchrun's monitor holds while it compares them.
2. While taskd is in charge, torchrun is shown only running ranks, until all of the job have ended well. Otherwise the
   stock code decides, and nothing of it is imitated here.
3. A rank's present process is fenced with SIGKILL before the rank gets another one. It is collected later.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from signal import SIGTERM, Signals
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.elastic.multiprocessing.api import (
    ProcessFailure,
    RunProcsResult,
    SignalException,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from typing_extensions import assert_never

from taskd.adaptors.seams.launcher import BINDING
from taskd.adaptors.torchrun import ends
from taskd.adaptors.torchrun.children import AdoptedHandler, require_child
from taskd.adaptors.torchrun.command import NUMA_REASON
from taskd.adaptors.torchrun.handles import RankHandles
from taskd.adaptors.torchrun.logs import RankLogs
from taskd.adaptors.torchrun.template_process import TemplateProcess
from taskd.config.process import environment
from taskd.errors import RecoveryError
from taskd.runtime.agent.ports import Command, Logs
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from taskd.wire.messages import Stage

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_REST_S: Final = 1.0
"""Seconds between two polls of torchrun while all ranks run. An event of a rank ends the wait."""
_TEARDOWN_TIMEOUT_S: Final = 10.0
"""Time for a dying process to end, in seconds. The kernel frees a few GiB of a dead process in a second."""


class RestartOwner(Enum):
    """Party that decides what happens to a failed rank."""

    TASKD = "taskd"
    TORCHRUN = "torchrun"
    DISMISSED = "dismissed"  # nobody: the job has ended well
    GIVEN_UP = "given up"  # torchrun, with nothing left to restart


StockPoll = Callable[[], "RunProcsResult | None"]


class TorchrunHost:
    """Implementation of `taskd.runtime.agent.ports.WorkerHost` for one start of torchrun's worker group.

    With `stand_ins` the processes that torch has started hold no ranks, and their exit statuses mean nothing.
    """

    def __init__(
        self,
        context: SubprocessContext,
        worker_group: WorkerGroup,
        commands: Mapping[LocalRank, Command],
        template: TemplateProcess,
        forbid_restart: Callable[[], None],
        has_others: Callable[[], bool],
        *,
        stand_ins: bool = False,
    ) -> None:
        self.lock: Final = threading.RLock()
        self._context = context
        self._worker_group = worker_group
        self._workers = {LocalRank(worker.local_rank): worker for worker in worker_group.workers}
        self._commands = commands
        self._template = template
        self._forbid_restart = forbid_restart
        self._has_others = has_others
        self._handles = RankHandles(context, stand_ins=stand_ins)
        self._logs = RankLogs(context)
        self._binding = BINDING.find().use
        self._charge = RestartOwner.TASKD
        self._turned = threading.Event()  # taskd no longer decides
        self._stirred = threading.Event()  # torchrun may have something to do
        self._reason = ""

    # Facts about a rank

    @property
    def local_ranks(self) -> tuple[LocalRank, ...]:
        """Local ranks of this node."""
        return tuple(map(LocalRank, sorted(self._workers)))

    def rank_of(self, local_rank: LocalRank) -> JobRank:
        """Return the global rank."""
        return JobRank(self._workers[local_rank].global_rank)

    def pid(self, local_rank: LocalRank) -> int:
        """Return the pid of the process that holds this rank, dead or alive."""
        return self._context.subprocess_handlers[local_rank].proc.pid

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Return the whole environment that torchrun gives to a process of this rank."""
        return {**environment(), **self._context.envs[local_rank]}

    def command(self, local_rank: LocalRank) -> Command:
        """Return the command that the rank runs; with NUMA binding only torch's own start can run it."""
        command = self._commands[local_rank]
        if command.python and self._binding.of(self._context) is not None:
            return Command(command.argv, False, NUMA_REASON)
        return command

    def assign(self, place: NodeRank) -> None:
        """Give this node the ranks of `place`, in torch's worker group and in the environment of new processes."""
        with self.lock:
            self._worker_group.group_rank = place  # type: ignore[assignment]
            for local_rank, worker in self._workers.items():
                rank = JobRank(place * len(self._workers) + local_rank)
                worker.global_rank = worker.role_rank = rank
                own = {"RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": str(place)}
                self._context.envs[local_rank].update(own)

    # Replacing a rank's process

    def open_logs(self, local_rank: LocalRank, incarnation: int) -> Logs:
        """Open new files for a new incarnation."""
        with self.lock:
            return self._logs.open(local_rank, incarnation)

    def spawn(self, local_rank: LocalRank, env: Mapping[str, str], logs: Logs) -> int:
        """Start the rank cold, by torch's own handler. Raises `RecoveryError` if the ranks are being ended."""
        with self.lock:
            self._refuse_if_closing(local_rank)
            self._handles.fence(local_rank)
            handler = processes.get_subprocess_handler(
                entrypoint=str(self._context.entrypoint),
                args=self._context.args[local_rank],
                env=dict(env),
                stdout=logs.stdout or "",
                stderr=logs.stderr or "",
                local_rank_id=local_rank,
                **self._binding.options(self._context),
            )
            self._install(local_rank, handler, logs)
            return handler.proc.pid

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        """Install a standby as this rank. Raises `RecoveryError` if it is no child of ours, or the ranks are ending."""
        del env  # already given to the standby
        with self.lock:
            self._refuse_if_closing(local_rank)
            require_child(pid)
            self._handles.fence(local_rank)
            self._install(local_rank, AdoptedHandler(pid, local_rank, self._template.release(pid)), logs)

    def _refuse_if_closing(self, local_rank: LocalRank) -> None:
        if self._handles.ending:
            raise RecoveryError(
                f"torchrun is ending its ranks, expected no new process for rank {self.rank_of(local_rank)} any more"
            )

    def _install(self, local_rank: LocalRank, handler: SubprocessHandler, logs: Logs) -> None:
        context = self._context
        self._handles.install(local_rank, handler)
        context.stdouts[local_rank] = logs.stdout or ""
        context.stderrs[local_rank] = logs.stderr or ""
        context.error_files[local_rank] = logs.error_file or os.devnull
        self._workers[local_rank].id = handler.proc.pid
        self._stirred.set()

    # End of a rank

    def kill(self, local_rank: LocalRank, signal: Signals) -> None:
        """Signal the rank's whole process group, unless its process has been reaped."""
        self._handles.kill(local_rank, signal)
        self._stirred.set()

    @property
    def cleaning(self) -> tuple[int, ...]:
        """Pids of processes that still clean up behind former processes of ranks."""
        return self._handles.cleaning

    def exit_status(self, local_rank: LocalRank) -> int | None:
        """Return the exit status of the rank's process, None while it runs.

        The rest of a failed process's group is killed first.
        """
        status = self._handles.exit_status(local_rank)
        if status is not None:
            self._stirred.set()
        return status

    def judge(self, _local_rank: LocalRank, status: int | None, _stage: Stage) -> int | None:
        """Return a child's exit status unchanged."""
        return status

    def start_template(self, env: Mapping[str, str]) -> int:
        """Start the process that forks standbys."""
        return self._template.start(env)

    def reap_standbys(self) -> tuple[int, ...]:
        """Collect dead standbys and a dead template."""
        return self._template.reap()

    # Decider on restarts

    def manage(self) -> None:
        """Put taskd in charge, unless it has given up."""
        self._hand_over(RestartOwner.TASKD, "taskd decides what happens to failed ranks")

    def stock(self) -> None:
        """Put torchrun in charge."""
        self._hand_over(RestartOwner.TORCHRUN, "torchrun's own behaviour applies to failed ranks")

    def give_up(self, reason: str) -> None:
        """End the ranks of this node, with torchrun's own report."""
        self._forbid_restart()
        self._reason = self._reason or reason
        self._hand_over(RestartOwner.GIVEN_UP, ends.tell(reason))

    def dismiss(self) -> None:
        """Record that the job has ended well."""
        self._hand_over(RestartOwner.DISMISSED, "the job has ended well")

    def _hand_over(self, charge: RestartOwner, text: str) -> None:
        if self._charge in (charge, RestartOwner.GIVEN_UP):
            return
        self._charge = charge
        self._handles.sweeps = charge is RestartOwner.TASKD
        if charge is RestartOwner.TASKD:
            self._turned.clear()
        else:
            self._turned.set()
        self._stirred.set()
        if charge is RestartOwner.GIVEN_UP:
            atexit.register(logger.warning, "%s", text)  # torchrun's own report comes first, and whole
        else:
            logger.info("%s", text)

    # Called by torchrun's own thread

    def await_turn(self, *, formed: bool) -> None:
        """Wait while torchrun has nothing to do. `formed`: the job has formed, and taskd leads.

        If this node's ranks have ended well and others' may still fail, wait until all have ended. torchrun's next
        poll, at its own interval, would be later. If all ranks run, wait for an event of one, `_REST_S` at most.
        """
        while self._charge is RestartOwner.TASKD and self._all_ended_well() and self._has_others():
            self._turned.wait(_LOOK_S)
        self._stirred.clear()
        if formed and self._is_at_rest():
            self._stirred.wait(_REST_S)

    def _is_at_rest(self) -> bool:
        """Return whether all ranks run under taskd and torchrun has no former ones to collect."""
        at_work = self._charge is not RestartOwner.TASKD or self._handles.has_former or self._logs.has_ended
        return not at_work and all(self.exit_status(local_rank) is None for local_rank in self.local_ranks)

    def poll(self, stock_poll: StockPoll) -> RunProcsResult | None:
        """Answer torchrun's poll of its ranks. Returns None while torchrun has nothing to do."""
        self._logs.collect()
        self._handles.collect_former()
        match self._charge:
            case RestartOwner.TASKD:
                return stock_poll() if self._all_ended_well() and not self._has_others() else None
            case RestartOwner.TORCHRUN:
                return stock_poll()
            case RestartOwner.DISMISSED:
                self._handles.await_the_dying(_TEARDOWN_TIMEOUT_S)
                if self._all_ended_well():
                    return stock_poll()
                return RunProcsResult(return_values=dict.fromkeys(self.local_ranks))  # this node holds no ranks
            case RestartOwner.GIVEN_UP:
                self._handles.await_the_dying(_TEARDOWN_TIMEOUT_S)
                return self._with_reason(stock_poll() or self._end_all(stock_poll))
            case _:
                assert_never(self._charge)

    def _all_ended_well(self) -> bool:
        statuses = [self.exit_status(local_rank) for local_rank in self.local_ranks]  # collects every one
        return all(status == 0 for status in statuses)

    def _end_all(self, stock_poll: StockPoll) -> RunProcsResult | None:
        """End all ranks of this node that still run: none has failed here, but the job ends."""
        ended = self._handles.claim_living()
        self._context.close()
        result = stock_poll()
        if result is not None:
            for local_rank in ended:
                result.failures.setdefault(local_rank, self._report(local_rank, -SIGTERM))
        return result

    def _with_reason(self, result: RunProcsResult | None) -> RunProcsResult | None:
        """Return torch's result. If no rank has failed by itself, it carries the reason why the job ends."""
        if result is not None and all(map(self._handles.ended_by_us, map(LocalRank, result.failures))):
            for local_rank, failure in result.failures.items():
                result.failures[local_rank] = self._report(LocalRank(local_rank), failure.exitcode)
            if not result.failures:
                result.failures |= {int(local_rank): failure for local_rank, failure in self._reports().items()}
        return result

    def _reports(self) -> dict[LocalRank, ProcessFailure]:
        return {local_rank: self._report(local_rank, 0) for local_rank in self.local_ranks}

    def _report(self, local_rank: LocalRank, exitcode: int) -> ProcessFailure:
        error_file = self._context.error_files[local_rank]
        return ends.report(local_rank, self.pid(local_rank), exitcode, error_file, self._reason)

    @property
    def leads(self) -> bool:
        """True while taskd, and not torchrun, decides on this node's ranks."""
        return self._charge is not RestartOwner.TORCHRUN

    @property
    def given_up(self) -> bool:
        """True once taskd has given up the job."""
        return self._charge is RestartOwner.GIVEN_UP

    def overrule(self, result: RunResult) -> None:
        """Make torchrun fail if the job has failed, although all ranks here ended well."""
        if self.given_up:
            result.state = self._worker_group.state = WorkerState.FAILED
            result.failures = {self.rank_of(local_rank): failure for local_rank, failure in self._reports().items()}

    def begin_closing(self) -> None:
        """Refuse new processes for all ranks from now on: torchrun is about to end them."""
        with self.lock:
            self._handles.end_here()


class TaskdContext(SubprocessContext):
    """torch's context with a changed poll. Never constructed: assigned as the class of a stock context."""

    _taskd_host: TorchrunHost

    @staticmethod
    def has_failed(context: object) -> bool:
        """Return whether taskd has failed in a poll of these ranks."""
        return "_taskd_host" in vars(context) and not isinstance(context, TaskdContext)

    @staticmethod
    def take_over(context: SubprocessContext, host: TorchrunHost) -> None:
        """Make `host` answer the polls of `context` from now on."""
        context.__class__ = TaskdContext
        vars(context)["_taskd_host"] = host

    def _poll(self) -> RunProcsResult | None:
        try:
            return self._taskd_host.poll(super()._poll)
        except SignalException:
            raise  # a signal ends torchrun
        except Exception:
            logger.exception("taskd failed at a look at the ranks; torchrun goes on with its own behaviour")
            self.__class__ = SubprocessContext  # type: ignore[assignment]
            self._taskd_host.stock()
            return None  # `TaskdElasticAgent` parts with taskd before the next poll

    def _close(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._taskd_host.begin_closing()
        except SignalException:
            raise
        except Exception:
            logger.exception("taskd failed when torchrun began to end the ranks")
        super()._close(*args, **kwargs)
