"""taskd's expectations of torch's elastic agent and its rendezvous: the launcher's part of the table."""

from typing import Final

from taskd.adaptors.seams.launcher_ways import Binding, ListOfTails, NoBinding, NumaBinding, Tails, TwoTails
from taskd.adaptors.seams.seam import Choice, Fit, Seam, Variant

_ELASTIC: Final = "torch.distributed.elastic"
AGENT: Final = f"{_ELASTIC}.agent.server.local_elastic_agent"
_AGENT_API: Final = f"{_ELASTIC}.agent.server.api"
_PROCESSES: Final = f"{_ELASTIC}.multiprocessing.api"
_TAIL: Final = f"{_ELASTIC}.multiprocessing.tail_log"
_BARRIER: Final = f"{_ELASTIC}.utils.store"
_RENDEZVOUS: Final = f"{_ELASTIC}.rendezvous.api"
_DYNAMIC: Final = f"{_ELASTIC}.rendezvous.dynamic_rendezvous"
_HANDLER: Final = f"{_ELASTIC}.multiprocessing.subprocess_handler.subprocess_handler"

_WORKER_GROUP: Final = ("self", "worker_group")

TAILS: Final[Choice[Tails]] = Choice(
    "following a rank's log files",
    (
        Variant(
            "one list of filtered followers",
            (
                Seam(_PROCESSES, "PContext", Fit.SETS, ("_tail_logs",)),
                Seam(_TAIL, "TailLog", Fit.ACCEPTS, ("log_line_filter",)),
                Seam(_TAIL, "TailLog", Fit.SETS, ("_log_line_filter",)),
            ),
            ListOfTails(),
        ),
        Variant(
            "one follower each for stdout and stderr",
            (Seam(_PROCESSES, "PContext", Fit.SETS, ("_stdout_tail", "_stderr_tail")),),
            TwoTails(),
        ),
    ),
)
BINDING: Final[Choice[Binding]] = Choice(
    "binding a rank to cores",
    (
        Variant(
            "--numa-binding",
            (
                Seam(_PROCESSES, "SubprocessContext", Fit.SETS, ("_numa_options",)),
                Seam(_PROCESSES, "get_subprocess_handler", Fit.ACCEPTS, ("numa_options",)),
            ),
            NumaBinding(),
        ),
        Variant("none", (Seam(AGENT, "start_processes", Fit.LACKS, ("numa_options",)),), NoBinding()),
    ),
)

LAUNCHER: Final = (
    TAILS,
    BINDING,
    Seam(AGENT, "LocalElasticAgent", Fit.ACCEPTS, ("spec", "logs_specs")),
    Seam(AGENT, "LocalElasticAgent._rendezvous", Fit.EXACT, _WORKER_GROUP),
    Seam(AGENT, "LocalElasticAgent._start_workers", Fit.EXACT, _WORKER_GROUP),
    Seam(AGENT, "LocalElasticAgent._initialize_workers", Fit.EXACT, _WORKER_GROUP),
    Seam(AGENT, "LocalElasticAgent._restart_workers", Fit.EXACT, _WORKER_GROUP),
    Seam(AGENT, "LocalElasticAgent._monitor_workers", Fit.EXACT, _WORKER_GROUP),
    Seam(AGENT, "LocalElasticAgent._exit_barrier", Fit.EXACT, ("self",)),
    Seam(_BARRIER, "barrier", Fit.ACCEPTS, ("store", "world_size", "key_prefix", "barrier_timeout")),
    Seam(_AGENT_API, "RunResult", Fit.SETS, ("state", "failures")),
    Seam(_RENDEZVOUS, "RendezvousHandler.num_nodes_waiting", Fit.EXACT, ("self",)),
    Seam(
        _DYNAMIC,
        "DynamicRendezvousHandler",
        Fit.SETS,
        ("_settings", "_state_holder", "_op_executor", "_heartbeat_lock"),
    ),
    Seam(_DYNAMIC, "DynamicRendezvousHandler._stop_heartbeats", Fit.EXACT, ("self",)),
    Seam(_DYNAMIC, "DynamicRendezvousHandler._keep_alive", Fit.EXACT, ("self",)),
    Seam(_DYNAMIC, "_RendezvousKeepAliveOp", Fit.EXACT, ()),
    Seam(_DYNAMIC, "_BackendRendezvousStateHolder.sync", Fit.EXACT, ("self",)),
    Seam(_DYNAMIC, "_DistributedRendezvousOpExecutor.run", Fit.ACCEPTS, ("self", "state_handler", "deadline")),
    Seam(_DYNAMIC, "_RendezvousContext", Fit.SETS, ("node", "state")),
    Seam(_DYNAMIC, "_RendezvousState", Fit.SETS, ("participants", "wait_list", "redundancy_list")),
    Seam(_DYNAMIC, "_Action.REMOVE_FROM_PARTICIPANTS", Fit.ACCEPTS, ()),
    Seam(_DYNAMIC, "_Action.REMOVE_FROM_WAIT_LIST", Fit.ACCEPTS, ()),
    Seam(_DYNAMIC, "_Action.REMOVE_FROM_REDUNDANCY_LIST", Fit.ACCEPTS, ()),
    Seam(_DYNAMIC, "_Action.FINISH", Fit.ACCEPTS, ()),
    Seam(_DYNAMIC, "_Action.ERROR_TIMEOUT", Fit.ACCEPTS, ()),
    Seam(AGENT, "LocalElasticAgent._shutdown", Fit.ACCEPTS, ("self",)),
    Seam(AGENT, "LocalElasticAgent", Fit.SETS, ("_pcontext",)),
    Seam(_AGENT_API, "SimpleElasticAgent", Fit.SETS, ("_remaining_restarts", "_worker_group", "_exit_barrier_timeout")),
    Seam(
        _AGENT_API,
        "Worker",
        Fit.SETS,
        ("id", "local_rank", "global_rank", "role_rank", "world_size", "role_world_size"),
    ),
    Seam(AGENT, "start_processes", Fit.ACCEPTS, ("entrypoint", "args", "envs", "logs_specs")),
    Seam(
        _PROCESSES,
        "PContext",
        Fit.SETS,
        ("args", "envs", "entrypoint", "stdouts", "stderrs", "error_files"),
    ),
    Seam(
        _PROCESSES,
        "SubprocessContext",
        Fit.SETS,
        ("_running_local_ranks", "_failures", "subprocess_handlers"),
    ),
    Seam(_PROCESSES, "DefaultLogsSpecs", Fit.SETS, ("_run_log_dir",)),
    Seam(_PROCESSES, "SubprocessContext._poll", Fit.EXACT, ("self",)),
    Seam(_PROCESSES, "SubprocessContext._close", Fit.ACCEPTS, ("self",)),
    Seam(_PROCESSES, "ProcessFailure", Fit.ACCEPTS, ("local_rank", "pid", "exitcode", "error_file")),
    Seam(
        _PROCESSES,
        "get_subprocess_handler",
        Fit.ACCEPTS,
        ("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id"),
    ),
    Seam(_HANDLER, "SubprocessHandler", Fit.SETS, ("proc", "_stdout", "_stderr", "local_rank_id")),
    Seam(_HANDLER, "SubprocessHandler.close", Fit.EXACT, ("self", "death_sig")),
    Seam(_TAIL, "TailLog", Fit.ACCEPTS, ("name", "log_files", "dst", "log_line_prefixes")),
    Seam(
        _TAIL,
        "TailLog",
        Fit.SETS,
        ("_name", "_log_files", "_dst", "_log_line_prefixes", "_finished_events", "_futs"),
    ),
)
