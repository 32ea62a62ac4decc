"""What taskd expects of torch's elastic agent: the table of seams, and the check of the installed torch against it.

Rules:

1. Data: whatever the code of this package overrides, calls or reads in torch stands in `SEAMS`.
2. All seams are checked before anything is applied; the first that does not fit raises `PatchError`.
3. `EXACT` is for methods that torch calls on our subclass: one more parameter would already be a call that we cannot
   take. `ACCEPTS` is for what we call ourselves.
"""

import importlib
import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.errors import PatchError

_ELASTIC: Final = "torch.distributed.elastic"
AGENT: Final = f"{_ELASTIC}.agent.server.local_elastic_agent"
_AGENT_API: Final = f"{_ELASTIC}.agent.server.api"
_PROCESSES: Final = f"{_ELASTIC}.multiprocessing.api"
_TAIL: Final = f"{_ELASTIC}.multiprocessing.tail_log"
_BARRIER: Final = f"{_ELASTIC}.utils.store"
_RENDEZVOUS: Final = f"{_ELASTIC}.rendezvous.api"
_DYNAMIC: Final = f"{_ELASTIC}.rendezvous.dynamic_rendezvous"
_HANDLER: Final = f"{_ELASTIC}.multiprocessing.subprocess_handler.subprocess_handler"


class Fit(Enum):
    """How a seam is compared."""

    EXACT = "takes exactly"
    ACCEPTS = "accepts"
    SETS = "sets in its constructor"


@dataclass(frozen=True)
class Seam:
    """One thing in torch that taskd relies on: `names` are parameters, or attributes for `Fit.SETS`."""

    module: str
    attribute: str
    fit: Fit
    names: tuple[str, ...]


_WORKER_GROUP: Final = ("self", "worker_group")

SEAMS: Final = (
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
        ("args", "envs", "entrypoint", "stdouts", "stderrs", "error_files", "_tail_logs"),
    ),
    Seam(
        _PROCESSES,
        "SubprocessContext",
        Fit.SETS,
        ("_running_local_ranks", "_failures", "subprocess_handlers", "_numa_options"),
    ),
    Seam(_PROCESSES, "DefaultLogsSpecs", Fit.SETS, ("_run_log_dir",)),
    Seam(_PROCESSES, "SubprocessContext._poll", Fit.EXACT, ("self",)),
    Seam(_PROCESSES, "SubprocessContext._close", Fit.ACCEPTS, ("self",)),
    Seam(_PROCESSES, "ProcessFailure", Fit.ACCEPTS, ("local_rank", "pid", "exitcode", "error_file")),
    Seam(
        _PROCESSES,
        "get_subprocess_handler",
        Fit.ACCEPTS,
        ("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id", "numa_options"),
    ),
    Seam(_HANDLER, "SubprocessHandler", Fit.SETS, ("proc", "_stdout", "_stderr", "local_rank_id")),
    Seam(_HANDLER, "SubprocessHandler.close", Fit.EXACT, ("self", "death_sig")),
    Seam(_TAIL, "TailLog", Fit.ACCEPTS, ("name", "log_files", "dst", "log_line_prefixes", "log_line_filter")),
    Seam(
        _TAIL,
        "TailLog",
        Fit.SETS,
        ("_name", "_log_files", "_dst", "_log_line_prefixes", "_log_line_filter", "_finished_events", "_futs"),
    ),
)


def verify(seams: tuple[Seam, ...] = SEAMS) -> None:
    """Check the installed torch. Imports torch's elastic agent. Raises `PatchError` for the first seam that differs."""
    for seam in seams:
        _verify_one(seam)


def _verify_one(seam: Seam) -> None:
    found = _resolve(seam)
    present = _attributes_set(found) if seam.fit is Fit.SETS else _parameters(found)
    wanted = set(seam.names)
    fits = present == seam.names if seam.fit is Fit.EXACT else wanted <= set(present) or "**" in present
    if fits:
        return
    shown = ", ".join(name for name in seam.names if name not in present) or ", ".join(seam.names)
    found_text = f"takes ({', '.join(present)})" if seam.fit is not Fit.SETS else "has another constructor"
    raise PatchError(
        f"{seam.attribute} {found_text}, expected that it {seam.fit.value} ({', '.join(seam.names)}), "
        f"differing in: {shown}; torch {torch_version()} is not one that this taskd knows. torchrun is left as it was: "
        "install a taskd for this torch"
    )


def _resolve(seam: Seam) -> object:
    try:
        found: object = importlib.import_module(seam.module)
        for part in seam.attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PatchError(
            f"found no {seam.attribute} in {seam.module} ({error}), expected it there; torch {torch_version()} is not "
            "one that this taskd knows. torchrun is left as it was: install a taskd for this torch"
        ) from error
    return found


def _parameters(found: object) -> tuple[str, ...]:
    if not callable(found):
        return ()
    parameters = inspect.signature(found).parameters.values()
    return tuple("**" if one.kind is one.VAR_KEYWORD else one.name for one in parameters)


def _attributes_set(found: object) -> tuple[str, ...]:
    """Names that the constructor stores or reads: enough to see that a private attribute still exists."""
    constructor = inspect.unwrap(vars(found).get("__init__", found))
    code = getattr(constructor, "__code__", None)
    fields = tuple(getattr(found, "__dataclass_fields__", ()))
    return (*(code.co_names if code is not None else ()), *fields)


def torch_version() -> str:
    """Version of the installed torch, as its own package says."""
    version: str = importlib.import_module("torch").__version__
    return version
