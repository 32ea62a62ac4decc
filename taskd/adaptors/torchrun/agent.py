"""Subclass of torchrun's agent that can replace single ranks; everything else stays stock.

Rules:

1. Every override calls torch's own method, so additions of later torch versions are kept.
2. An error in taskd leaves torchrun's own behaviour in place. The log gets one error line or traceback.
3. Only `make_node_runtime` constructs the runtime; this module uses the port `NodeRuntime`.
"""

import contextlib
import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from torch.distributed import HashStore
from torch.distributed.elastic.agent.server import local_elastic_agent as stock
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext

from taskd.adaptors.torchrun import entry
from taskd.adaptors.torchrun.command import NUMA_REASON, injection, parse_command
from taskd.adaptors.torchrun.ends import LeavableStore
from taskd.adaptors.torchrun.given import given_master_addr, max_restarts
from taskd.adaptors.torchrun.host import TaskdContext, TorchrunHost
from taskd.adaptors.torchrun.logs import spare_earlier
from taskd.adaptors.torchrun.node_runtime import make_node_runtime
from taskd.adaptors.torchrun.refusal import refuse_wrong_settings
from taskd.adaptors.torchrun.script import mark_round
from taskd.adaptors.torchrun.start import restore_inherited
from taskd.adaptors.torchrun.template_process import TemplateProcess
from taskd.adaptors.torchrun.waiting import set_aside
from taskd.config.address import knows_manager
from taskd.config.process import environment
from taskd.errors import RecoveryError, TaskdError
from taskd.runtime.agent.ports import Command, NodeIdentity, NodeRuntime, Outlook
from taskd.wire.kinds import JobRank, LocalRank, NodeRank

logger = logging.getLogger(__name__)

_ROUND_KEY: Final = "taskd/round"
_weave_lock: Final = threading.Lock()


class TaskdElasticAgent(stock.LocalElasticAgent):
    """Replacement for `LocalElasticAgent` in torchrun's launcher."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taskd_runtime: NodeRuntime | None = None
        self._taskd_host: TorchrunHost | None = None
        self._taskd_template: TemplateProcess | None = None
        self._taskd_commands: dict[LocalRank, Command] = {}
        self._taskd_restarting = False
        self._taskd_candidate = self._taskd_asked = False
        self._taskd_formed = False
        self._taskd_disabled = not self._taskd_guarded(self._taskd_set_up)

    def _taskd_set_up(self) -> None:
        spec = self._worker_group.spec
        refuse_wrong_settings(spec)
        self._taskd_template = TemplateProcess(_command_of(spec))

    # Finding the place of this node

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._taskd_asked = False
        self._taskd_guarded(lambda: self._taskd_ask(worker_group))
        runtime = self._taskd_runtime
        if runtime is None or not self._taskd_asked:
            self._taskd_candidate = False  # torchrun itself forms this world and starts its ranks
            super()._rendezvous(worker_group)
            return
        self._taskd_await_check(worker_group.spec, runtime)
        formed = entry.attempt(super()._rendezvous, worker_group, runtime)
        for name in WorkerGroup.__slots__:
            setattr(worker_group, name, getattr(formed, name))
        self._taskd_candidate = entry.resize(worker_group, runtime.places, living=formed.store is None)
        if formed.store is None:
            worker_group.store = HashStore()  # type: ignore[assignment]
        self._store = worker_group.store

    def _taskd_ask(self, worker_group: WorkerGroup) -> None:
        """Make the runtime once, and announce this node to the manager if the job has several nodes or checks them."""
        spec, nodes = worker_group.spec, entry.most_nodes(worker_group.spec)
        if self._taskd_runtime is not None or self._taskd_disabled:
            return
        self._taskd_make(worker_group, given_master_addr(spec), nodes)
        runtime, template = self._taskd_runtime, self._taskd_template
        if runtime is not None and template is not None and (nodes > 1 or runtime.checks):
            runtime.ask(entry.wanted_place(spec), spec.local_world_size, entry.least_nodes(spec), template)
            self._taskd_asked = True

    def _taskd_await_check(self, spec: WorkerSpec, runtime: NodeRuntime) -> None:
        """Exit if this node was found unfit. The rendezvous stays open: the other nodes may still meet in it."""
        if runtime.await_check():
            entry.keep_open(spec.rdzv_handler)
            raise SystemExit(1)  # torch then ends its agent: `_shutdown`

    # Starting the group

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        super()._initialize_workers(worker_group)
        # The worker group's ids agree with the processes only from here on. Earlier, a replacement would be undone.
        runtime, host = self._taskd_runtime, self._taskd_host
        if runtime is not None and host is not None:
            self._taskd_or_part(lambda: runtime.started(host, self._taskd_identify(worker_group)))

    def _taskd_identify(self, worker_group: WorkerGroup) -> NodeIdentity:
        return replace(_identify(worker_group), candidate=self._taskd_candidate)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._taskd_host = None
        self._taskd_formed = False
        if self._taskd_runtime is not None and self._taskd_runtime.ended:
            self._taskd_part()
        self._taskd_guarded(lambda: self._taskd_prepare(worker_group))
        if self._taskd_runtime is None:
            self._taskd_refuse_ghosts()
            return dict(super()._start_workers(worker_group))
        self._taskd_commands = {}
        real: dict[str, Any] = {}

        def weave(given: dict[str, Any]) -> None:
            self._taskd_guarded(lambda: self._taskd_weave(worker_group, given))
            if self._taskd_candidate:
                real.update(entry.put_aside(given, sys.executable))

        with contextlib.ExitStack() as woven:
            if not self._taskd_guarded(lambda: woven.enter_context(_woven(weave))):
                self._taskd_refuse_ghosts()
            ids = dict(super()._start_workers(worker_group))
        vars(self._pcontext).update(real)
        self._taskd_guarded(lambda: self._taskd_take_over(worker_group))
        if self._taskd_host is None:
            self._taskd_part()
        return ids

    def _taskd_refuse_ghosts(self) -> None:
        """Raise `RecoveryError` if this node waits for a place.

        Other nodes then hold the numbers of the ranks that torch would start here.
        """
        if self._taskd_candidate:
            raise RecoveryError(
                "this node holds no place in a job that trains, and its agent has ended (see above): no rank is "
                "started here; start torchrun on this node again"
            )

    def _taskd_prepare(self, worker_group: WorkerGroup) -> None:
        identity = _identify(worker_group)
        self._taskd_make(worker_group, identity.given_master_addr, identity.node_count)

    def _taskd_or_part(self, call: Callable[[], None]) -> bool:
        """Return whether a call into taskd succeeded. If not, all ranks are torchrun's alone, later ones too."""
        well = self._taskd_guarded(call)
        if not well:
            self._taskd_part()
        return well

    def _taskd_part(self) -> None:
        runtime, host = self._taskd_runtime, self._taskd_host
        self._taskd_runtime, self._taskd_host, self._taskd_disabled = None, None, True
        if host is not None:
            self._taskd_guarded(host.stock)
        if runtime is not None:
            self._taskd_guarded(lambda: runtime.stop(deserts=True))
            self._taskd_guarded(restore_inherited)

    def _taskd_make(self, worker_group: WorkerGroup, master_addr: str | None, node_count: int) -> None:
        if self._taskd_runtime is not None or self._taskd_disabled:
            return
        if not isinstance(worker_group.spec.entrypoint, str):
            self._taskd_disabled = True
            logger.warning("the ranks run a function, expected a script: taskd leaves this job to torchrun")
            return
        if entry.least_nodes(worker_group.spec) and not knows_manager(environment(), master_addr):
            self._taskd_disabled = True
            logger.info("no manager is known, and the job may grow: taskd leaves it to torchrun")
            return
        self._taskd_disabled = True  # unless the next line succeeds: one attempt, one traceback
        self._taskd_runtime = make_node_runtime(master_addr, node_count, worker_group.spec)
        set_aside(worker_group.spec.rdzv_handler, self._taskd_leads)
        self._taskd_disabled = False

    def _taskd_leads(self) -> bool:
        """Return whether nodes enter the job by the manager alone. While it forms, torch's rendezvous admits them."""
        runtime, host = self._taskd_runtime, self._taskd_host
        if runtime is None or host is None or not host.leads:
            return False
        if not self._taskd_formed:
            self._taskd_or_part(lambda: self._taskd_look(runtime))
        return self._taskd_formed

    def _taskd_look(self, runtime: NodeRuntime) -> None:
        self._taskd_formed = runtime.outlook(0.0) is Outlook.LIVING

    def _taskd_weave(self, worker_group: WorkerGroup, given: dict[str, Any]) -> None:
        """Add taskd's preparation and the runtime's variables to every rank's environment, in place."""
        runtime = self._taskd_runtime
        if runtime is None:
            return
        entrypoint, args, envs = given["entrypoint"], given["args"], given["envs"]
        spare_earlier(given["logs_specs"], worker_group.spec.max_restarts - self._remaining_restarts)
        this_round = "" if self._taskd_candidate else self._taskd_round(worker_group)
        variables = {local_rank: runtime.worker_environment(LocalRank(local_rank)) for local_rank in envs}
        commands = {
            LocalRank(local_rank): parse_command(entrypoint, arguments, sys.executable)
            for local_rank, arguments in args.items()
        }
        for local_rank, command in commands.items():
            own = variables[local_rank]
            envs[local_rank].update(own | mark_round(this_round, own.get("TASKD_GENERATION", "0")))
            envs[local_rank].update(injection(command, environment() | envs[local_rank]))
        self._taskd_commands = commands
        reasons = [command.reason for command in commands.values() if not command.python]
        if given.get("numa_options") is not None:
            reasons.append(NUMA_REASON)
        if reasons:
            logger.warning("%s: dead ranks are replaced by cold starts only", reasons[0])

    def _taskd_round(self, worker_group: WorkerGroup) -> str:
        """Return a name of this start of the group, the same on all nodes: it keeps store keys of earlier starts apart.

        Dynamic rendezvous gives each round its own store. Static rendezvous does not, but its nodes restart in step and
        therefore count alike.
        """
        spec = worker_group.spec
        if spec.rdzv_handler.get_backend() == "static":
            return str(spec.max_restarts - self._remaining_restarts)
        store: Any = worker_group.store
        if worker_group.group_rank == 0:
            store.set(_ROUND_KEY, uuid.uuid4().hex[:12])
        return str(store.get(_ROUND_KEY).decode())

    def _taskd_take_over(self, worker_group: WorkerGroup) -> None:
        context, template = self._pcontext, self._taskd_template
        if not isinstance(context, SubprocessContext) or not self._taskd_commands or template is None:
            return
        host = TorchrunHost(
            context,
            worker_group,
            self._taskd_commands,
            template,
            self._taskd_forbid_restart,
            self._taskd_has_others,
            stand_ins=self._taskd_candidate,
        )
        TaskdContext.take_over(context, host)
        self._taskd_host = host

    def _taskd_has_others(self) -> bool:
        """Return whether ranks of other nodes may still fail, which restarts this node's ranks too."""
        runtime = self._taskd_runtime
        return runtime is not None and (runtime.places or 1) > 1 and self._taskd_leads()

    def _taskd_forbid_restart(self) -> None:
        self._remaining_restarts = 0

    # Monitoring and ending the group

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        host = self._taskd_host
        if host is not None:
            self._taskd_or_part(lambda: host.await_turn(formed=self._taskd_leads()))
        with host.lock if host is not None else contextlib.nullcontext():
            result: RunResult = super()._monitor_workers(worker_group)
        if host is not None and TaskdContext.has_failed(self._pcontext):
            self._taskd_part()
        self._taskd_result = result
        return result

    def _exit_barrier(self) -> None:
        runtime, host = self._taskd_runtime, self._taskd_host
        awaited: list[bool] = []
        if runtime is not None:
            self._taskd_guarded(lambda: awaited.append(runtime.await_end(self._exit_barrier_timeout)))
        if runtime is not None and awaited == [True]:
            self._taskd_guarded(runtime.stopping)  # the manager's last message has then reached the host
        else:
            if host is not None:
                self._store: Any = LeavableStore(self._store, lambda: host.given_up)
            super()._exit_barrier()  # type: ignore[no-untyped-call]
        if host is not None:
            self._taskd_guarded(lambda: host.overrule(self._taskd_result))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._taskd_restarting = True
        try:
            super()._restart_workers(worker_group)
        finally:
            self._taskd_restarting = False

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        runtime = self._taskd_runtime
        if self._taskd_host is not None:
            self._taskd_guarded(self._taskd_host.begin_closing)
        if runtime is not None:
            self._taskd_guarded(runtime.stopping)
        try:
            super()._shutdown(*args, **kwargs)
        finally:
            if not self._taskd_restarting:
                if runtime is not None:
                    self._taskd_guarded(runtime.stop)
                if self._taskd_template is not None:
                    self._taskd_guarded(self._taskd_template.close)

    def _taskd_guarded(self, call: Callable[[], object]) -> bool:
        """Return whether a call into taskd succeeded. A failure must never end a job that torchrun alone would run."""
        try:
            call()
        except SignalException:
            raise  # torchrun must end: no fault of taskd
        except TaskdError as error:
            logger.error("taskd cannot take part: %s; torchrun goes on with its own behaviour", error)
            return False
        except Exception:
            logger.exception("taskd failed in torchrun's agent; torchrun goes on with its own behaviour")
            return False
        return True


def _identify(worker_group: WorkerGroup) -> NodeIdentity:
    spec = worker_group.spec
    return NodeIdentity(
        node_rank=NodeRank(worker_group.group_rank or 0),
        node_count=int(worker_group.group_world_size or 1),
        ranks=tuple(JobRank(worker.global_rank) for worker in worker_group.workers),
        given_master_addr=given_master_addr(spec),
        max_restarts=max_restarts(spec),
        min_nodes=entry.least_nodes(spec),
    )


def _command_of(spec: WorkerSpec) -> Command | None:
    if not isinstance(spec.entrypoint, str):
        return None
    return parse_command(spec.entrypoint, spec.args, sys.executable)


Change = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def _woven(change: Change) -> Iterator[None]:
    """Hold `start_processes` patched: `change` edits the keyword arguments of this thread's calls."""
    with _weave_lock:
        start_processes = stock.start_processes
        thread = threading.get_ident()

        def start_woven(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                change(kwargs)  # torch passes all by keyword; `seams` has checked the names
            return start_processes(*args, **kwargs)

        vars(stock)["start_processes"] = start_woven
        try:
            yield
        finally:
            vars(stock)["start_processes"] = start_processes
