"""torchrun's agent with taskd in it: stock in all it does, except that single ranks can be replaced.

Rules:

1. Every override calls torch's own method; what torch adds to it in a later version is kept.
2. Whatever goes wrong in taskd leaves torchrun's own behaviour, with one traceback in the log.
3. `_make_node_runtime` is the only place that knows the runtime.
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
from taskd.adaptors.torchrun.host import TaskdContext, TorchrunHost
from taskd.adaptors.torchrun.isolation import isolated
from taskd.adaptors.torchrun.logs import spare_earlier
from taskd.adaptors.torchrun.script import mark_round
from taskd.adaptors.torchrun.template_process import TemplateProcess
from taskd.adaptors.torchrun.waiting import set_aside
from taskd.config.address import knows_manager
from taskd.config.process import environment, hand_down, profile_nccl, withhold
from taskd.config.settings import DESCRIPTORS, SECRET, SIGCHLD_IGNORED
from taskd.core.descriptors import needed_descriptors, plan_descriptors
from taskd.core.recovery.budget import DEFAULT_MAX_RESTARTS
from taskd.errors import RoomError, TaskdError
from taskd.runtime.agent.ports import Command, NodeIdentity, NodeRuntime, Outlook
from taskd.runtime.system.descriptors import (
    descriptor_limits,
    fill_standard_descriptors,
    open_descriptors,
    set_descriptor_limit,
)
from taskd.runtime.system.sigchld import stop_ignoring_sigchld
from taskd.wire.kinds import JobRank, LocalRank, NodeRank

logger = logging.getLogger(__name__)

_DEFAULT_MASTER_ADDR: Final = "127.0.0.1"
_LOG_OPTIONS: Final = (("-r", "PET_REDIRECTS"), ("--re", "PET_REDIRECTS"), ("-t", "PET_TEE"), ("--t", "PET_TEE"))
_ROUND_KEY: Final = "taskd/round"
_weave_lock: Final = threading.Lock()


def _make_node_runtime(given_master_addr: str | None, node_count: int, spec: WorkerSpec) -> NodeRuntime:
    with isolated():
        from taskd.adaptors.torchrun.store import NodeStore
        from taskd.config.agent import AgentConfig
        from taskd.runtime.agent.agent import NodeAgent
        from taskd.runtime.box.elf import flaw
        from taskd.runtime.box.shim import REINSTALL, library_path

    fill_standard_descriptors()
    config = AgentConfig.from_environment(master_addr=given_master_addr, node_count=node_count)
    withhold(SECRET)  # a rank needs none, and shows its environment to trackers and logs
    needed = needed_descriptors(
        open_descriptors(),
        spec.local_world_size,
        config.standbys,
        node_count,
        embeds=config.manager is None,
        logs=any(_is_given(spec, *option) for option in _LOG_OPTIONS),
    )
    _find_descriptors(needed, parse_command(spec.entrypoint, spec.args, sys.executable))
    if stop_ignoring_sigchld():
        hand_down(SIGCHLD_IGNORED, 1)
    if config.nccl_times:
        plugin = library_path()
        wrong = flaw(plugin)
        if reason := f"{plugin} {wrong}; {REINSTALL}" if wrong else profile_nccl(plugin):
            logger.warning("no times of NCCL's kernels, and so no slow ranks of jobs that use it: %s", reason)
    return NodeAgent(config, NodeStore(config.manager).serve)


def _find_descriptors(needed: int, command: Command) -> None:
    """See that this process may have so many descriptors, and ranks of `command` no more. Raises `RoomError`."""
    soft, hard = descriptor_limits()
    plan = plan_descriptors(needed, soft, hard, "" if command.python else command.reason)
    if plan.refusal:
        raise RoomError(plan.refusal)
    if plan.limit is not None:
        set_descriptor_limit(plan.limit)
        hand_down(DESCRIPTORS, soft)
        logger.info("limit of descriptors raised for torchrun: soft=%d needed=%d hard=%d", soft, needed, hard)


class TaskdElasticAgent(stock.LocalElasticAgent):
    """Takes the place of `LocalElasticAgent` in torchrun's launcher."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taskd_runtime: NodeRuntime | None = None
        self._taskd_disabled = False
        self._taskd_host: TorchrunHost | None = None
        self._taskd_template = TemplateProcess(_command_of(self._worker_group.spec))
        self._taskd_commands: dict[LocalRank, Command] = {}
        self._taskd_restarting = False
        self._taskd_candidate = False
        self._taskd_formed = False

    # Finding the place of this node

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        runtime = self._taskd_ask(worker_group)
        if runtime is None:
            self._taskd_candidate = False  # torchrun itself forms this world, and starts its ranks
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

    def _taskd_ask(self, worker_group: WorkerGroup) -> NodeRuntime | None:
        """The runtime, having asked the manager; None if there is nobody to ask, or the job is known already."""
        spec, nodes = worker_group.spec, entry.most_nodes(worker_group.spec)
        if self._taskd_runtime is not None or self._taskd_disabled:
            return None
        self._taskd_guarded(lambda: self._taskd_make(worker_group, _given_master_addr(spec), nodes))
        runtime = self._taskd_runtime
        if runtime is None or (nodes == 1 and not runtime.checks):
            return None
        asked = self._taskd_guarded(
            lambda: runtime.ask(
                entry.wanted_place(spec), spec.local_world_size, entry.least_nodes(spec), self._taskd_template
            )
        )
        return runtime if asked else None

    def _taskd_await_check(self, spec: WorkerSpec, runtime: NodeRuntime) -> None:
        """Leave if this node was found unfit. The others may still meet in the rendezvous: it stays open."""
        if runtime.await_check():
            entry.keep_open(spec.rdzv_handler)
            raise SystemExit(1)  # torch ends its agent then: `_shutdown`

    # Starting the group

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        super()._initialize_workers(worker_group)
        # Only now do the worker group's ids agree with the processes: before, a replacement would be undone.
        runtime, host = self._taskd_runtime, self._taskd_host
        if runtime is not None and host is not None:
            identity = replace(_identify(worker_group), candidate=self._taskd_candidate)
            if not self._taskd_guarded(lambda: runtime.started(host, identity)):
                host.stock()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._taskd_host = None
        self._taskd_formed = False
        self._taskd_guarded(lambda: self._taskd_prepare(worker_group))
        if self._taskd_runtime is None:
            return dict(super()._start_workers(worker_group))
        self._taskd_commands = {}

        real: dict[str, Any] = {}

        def weave(given: dict[str, Any]) -> None:
            self._taskd_guarded(lambda: self._taskd_weave(worker_group, given))
            if self._taskd_candidate:
                real.update(entry.put_aside(given, sys.executable))

        with _woven(weave):
            ids = dict(super()._start_workers(worker_group))
        vars(self._pcontext).update(real)
        self._taskd_guarded(lambda: self._taskd_take_over(worker_group))
        return ids

    def _taskd_prepare(self, worker_group: WorkerGroup) -> None:
        identity = _identify(worker_group)
        self._taskd_make(worker_group, identity.given_master_addr, identity.node_count)

    def _taskd_make(self, worker_group: WorkerGroup, given_master_addr: str | None, node_count: int) -> None:
        if self._taskd_runtime is not None or self._taskd_disabled:
            return
        if not isinstance(worker_group.spec.entrypoint, str):
            self._taskd_disabled = True
            logger.warning("the ranks run a function, expected a script: taskd leaves this job to torchrun")
            return
        if entry.least_nodes(worker_group.spec) and not knows_manager(environment(), given_master_addr):
            self._taskd_disabled = True
            logger.info("no manager is known, and the job may grow: taskd leaves it to torchrun")
            return
        self._taskd_disabled = True  # unless the next line succeeds: one attempt, one traceback
        self._taskd_runtime = _make_node_runtime(given_master_addr, node_count, worker_group.spec)
        set_aside(worker_group.spec.rdzv_handler, self._taskd_leads)
        self._taskd_disabled = False

    def _taskd_leads(self) -> bool:
        """Whether nodes come into the job by the manager alone; while it forms, torch's rendezvous lets them in."""
        runtime, host = self._taskd_runtime, self._taskd_host
        if runtime is None or host is None or not host.leads:
            return False
        self._taskd_formed = self._taskd_formed or runtime.outlook(0.0) is Outlook.LIVING
        return self._taskd_formed

    def _taskd_weave(self, worker_group: WorkerGroup, given: dict[str, Any]) -> None:
        """Put every rank's script under boot, and the runtime's variables into its environment, in place."""
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
        """A name of this start of the group, the same on all nodes: it keeps store keys of earlier starts apart.

        Dynamic rendezvous gives each round a store of its own. Static rendezvous does not, but its nodes restart in
        step, so that they count alike.
        """
        spec = worker_group.spec
        if spec.rdzv_handler.get_backend() == "static":
            return str(spec.max_restarts - self._remaining_restarts)
        store: Any = worker_group.store
        if worker_group.group_rank == 0:
            store.set(_ROUND_KEY, uuid.uuid4().hex[:12])
        return str(store.get(_ROUND_KEY).decode())

    def _taskd_take_over(self, worker_group: WorkerGroup) -> None:
        context = self._pcontext
        if not isinstance(context, SubprocessContext) or not self._taskd_commands:
            return
        host = TorchrunHost(
            context,
            worker_group,
            self._taskd_commands,
            self._taskd_template,
            self._taskd_forbid_restart,
            self._taskd_has_others,
            stand_ins=self._taskd_candidate,
        )
        TaskdContext.take_over(context, host)
        self._taskd_host = host

    def _taskd_has_others(self) -> bool:
        """Whether ranks of other nodes may still fail, and this node's start again with them."""
        runtime = self._taskd_runtime
        return runtime is not None and (runtime.places or 1) > 1 and self._taskd_leads()

    def _taskd_forbid_restart(self) -> None:
        self._remaining_restarts = 0

    # Watching and ending it

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        host = self._taskd_host
        if host is not None:
            host.await_turn(formed=self._taskd_leads())
        with host.lock if host is not None else contextlib.nullcontext():
            result: RunResult = super()._monitor_workers(worker_group)
        self._taskd_result = result
        return result

    def _exit_barrier(self) -> None:
        runtime, host = self._taskd_runtime, self._taskd_host
        if runtime is not None and runtime.await_end(self._exit_barrier_timeout):
            self._taskd_guarded(runtime.stopping)  # the manager's last word has then come to the host
        else:
            if host is not None:
                self._store: Any = LeavableStore(self._store, lambda: host.given_up)
            super()._exit_barrier()  # type: ignore[no-untyped-call]
        if host is not None:
            host.overrule(self._taskd_result)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._taskd_restarting = True
        try:
            super()._restart_workers(worker_group)
        finally:
            self._taskd_restarting = False

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        runtime = self._taskd_runtime
        if self._taskd_host is not None:
            self._taskd_host.begin_closing()
        if runtime is not None:
            self._taskd_guarded(runtime.stopping)
        try:
            super()._shutdown(*args, **kwargs)
        finally:
            if not self._taskd_restarting:
                if runtime is not None:
                    self._taskd_guarded(runtime.stop)
                self._taskd_template.close()

    def _taskd_guarded(self, call: Callable[[], None]) -> bool:
        """Whether a call into taskd went well. It must never be the end of a job that torchrun alone would run."""
        try:
            call()
        except SignalException:
            raise  # torchrun is told to end: no fault of taskd
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
        given_master_addr=_given_master_addr(spec),
        max_restarts=_max_restarts(spec),
        min_nodes=entry.least_nodes(spec),
    )


def _command_of(spec: WorkerSpec) -> Command | None:
    if not isinstance(spec.entrypoint, str):
        return None
    return parse_command(spec.entrypoint, spec.args, sys.executable)


def _given_master_addr(spec: WorkerSpec) -> str | None:
    """torchrun fills in its default address with a static rendezvous; only the command line tells who chose it."""
    address = spec.master_addr
    if address == _DEFAULT_MASTER_ADDR and not _is_given(spec, "--master-a", "PET_MASTER_ADDR"):
        return None
    return address


def _max_restarts(spec: WorkerSpec) -> int:
    """The job's budget. torchrun's default, which ends a job at its first fault, counts only if it was asked for."""
    asked = spec.max_restarts > 0 or _is_given(spec, "--max", "PET_MAX_RESTARTS")
    return int(spec.max_restarts) if asked else DEFAULT_MAX_RESTARTS


def _is_given(spec: WorkerSpec, option: str, variable: str) -> bool:
    """Whether the user has set an option of torchrun, on the command line or as one of its variables.

    `option` is the shortest form that torchrun understands. The script's own arguments come last and do not count.
    """
    own = list(sys.argv[1:])
    for arg in reversed(spec.args):
        if not own or own[-1] != str(arg):
            break
        own.pop()
    return variable in environment() or any(arg.replace("_", "-").startswith(option) for arg in own)


Change = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def _woven(change: Change) -> Iterator[None]:
    """Let `change` edit what this thread gives to `start_processes` meanwhile."""
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
