"""The table of every setting: what it is called, what it may be, what it means.

Rules:

1. A setting that is not in `SETTINGS` does not exist: the parsers know no other name, and `docs/configuration.md` is
   written from this table by `scripts/make-docs.py`.
2. Defaults that the core owns are taken from its policies, so that no number stands in two places.
"""

from collections.abc import Mapping
from typing import Final

from taskd.config.schema import Format, Reader, Setting, UnknownName, unknown_names
from taskd.core.policy import Deadlines, Membership, NodeCheckPolicy, Policy, Tempo

PREFIX: Final = "TASKD_"
EMBEDDED: Final = "embedded"
"""Value of TASKD_MANAGER that asks for a manager inside the agent of a job with one node."""

_MANAGER: Final = (Reader.MANAGER,)
_AGENT: Final = (Reader.AGENT,)
_BOTH: Final = (Reader.MANAGER, Reader.AGENT)
_WORKER: Final = (Reader.WORKER,)
_DEADLINES: Final = Deadlines()
_MEMBERSHIP: Final = Membership()
_TEMPO: Final = Tempo()
_CHECK: Final = NodeCheckPolicy()
_POLICY: Final = Policy(job_id="", node_count=1, ranks_per_node=1)
_DAY_S: Final = 86_400

ENABLED = Setting(
    "TASKD_PROCESS_ENABLE", None, Format.SWITCH, "off", (Reader.AGENT, Reader.SHIM),
    "Switches taskd on in torchrun and in the training processes. Off: both behave exactly as without taskd.",
)  # fmt: skip
JOB_ID = Setting(
    "TASKD_JOB_ID", "job_id", Format.TEXT, "default", _BOTH,
    "Name of the job; manager and agents must agree on it. When unset, `MINDX_TASK_ID` counts.",
)  # fmt: skip
NODE_NUMS = Setting(
    "TASKD_NODE_NUMS", "node_nums", Format.WHOLE, None, _MANAGER, "Number of nodes of the job. Required.", 1, 100_000
)  # fmt: skip
PROC_PER_NODE = Setting(
    "TASKD_PROC_PER_NODE", "proc_per_node", Format.WHOLE, None, _MANAGER,
    "Number of training processes per node. Required.", 1, 1024,
)  # fmt: skip
HOST = Setting(
    "TASKD_MANAGER_HOST", "host", Format.TEXT, None, _MANAGER,
    "Address on which the manager listens. When unset: all interfaces with a secret, 127.0.0.1 without one.",
)  # fmt: skip
PORT = Setting(
    "TASKD_MANAGER_PORT", "port", Format.WHOLE, "9601", _BOTH,
    "Port of the manager, unless TASKD_MANAGER names one. 0 lets a manager take any free port.", 0, 65_535,
)  # fmt: skip
SECRET = Setting(
    "TASKD_SECRET", "secret", Format.TEXT, None, _BOTH,
    "The job's secret: 128 random bits or more (`openssl rand -hex 32`), the same on all nodes. Both sides derive "
    "their keys from it and the job's name; the ranks do not inherit it. When unset, only loopback is used, with "
    "a secret that taskd keeps in the run directory.",
)  # fmt: skip
SECRET_FILE = Setting(
    "TASKD_SECRET_FILE", "secret_file", Format.PATH, None, _BOTH,
    "File that holds the secret instead. Group and others must not be able to read it.",
)  # fmt: skip
INSECURE = Setting(
    "TASKD_INSECURE", "insecure", Format.SWITCH, "off", _BOTH,
    "Allows traffic beyond loopback without a secret: whoever reaches the port can then stop the job.",
)  # fmt: skip
RUN_DIR = Setting(
    "TASKD_RUN_DIR", "run_dir", Format.PATH, None, _BOTH,
    "Directory for records, at most 60 bytes long. When unset: `taskd` in `XDG_RUNTIME_DIR` where that is there, else "
    "`taskd-UID` in the directory for temporary files.",
)  # fmt: skip
HEARTBEAT_S = Setting(
    "TASKD_HEARTBEAT_S", "heartbeat_s", Format.SECONDS, f"{_MEMBERSHIP.heartbeat_s:g}", _BOTH,
    "Time between two reports of an agent when nothing changes. The same on all nodes.", 0.01,
)  # fmt: skip
STRATEGY = Setting(
    "TASKD_RECOVER_STRATEGY", "recover_strategy", Format.STRATEGIES, ",".join(one.value for one in _POLICY.allowed),
    _MANAGER,
    "The strategies that the job allows. They are tried in a fixed order, whatever the order here, and exit is always "
    "the last. When unset, the pod's annotation `recover-strategy` counts.", annotation="recover-strategy",
)  # fmt: skip
WAIT_RESCHEDULE_TIMEOUT = Setting(
    "TASKD_WAIT_RESCHEDULE_TIMEOUT", "wait_reschedule_timeout", Format.SECONDS, f"{_POLICY.wait_node_s:g}", _MANAGER,
    "Time to wait for a node that the cluster was asked for, before the next strategy is tried. When unset, the pod's "
    "annotation `wait-reschedule-timeout` counts.", 0.1, 7 * _DAY_S, annotation="wait-reschedule-timeout",
)  # fmt: skip
PODINFO = Setting(
    "TASKD_PODINFO", None, Format.PATH, "/etc/podinfo/annotations", _MANAGER,
    "File of the pod's annotations as the downward API writes it. Need not exist. One that cannot be read is an error "
    "if the strategies are given nowhere else, and otherwise a warning.",
)  # fmt: skip
NODE_COMMAND = Setting(
    "TASKD_NODE_COMMAND", "node_command", Format.COMMAND, None, _MANAGER,
    "Command line that asks the cluster for a node in place of a lost one. When unset or empty, a lost node is "
    "replaced only by one that comes by itself.",
)  # fmt: skip
CHECKPOINT_DIR = Setting(
    "TASKD_CHECKPOINT_DIR", "checkpoint_dir", Format.PATH, None, _BOTH,
    "Directory for the checkpoint that the strategy dump writes, on a file system that all nodes share. The manager's "
    "holds for all ranks. When it has none, there is no dump.",
)  # fmt: skip
RESTART_WINDOW = Setting(
    "TASKD_RESTART_WINDOW", "restart_window", Format.SECONDS, None, _MANAGER,
    "Only the recoveries of so many last seconds count against the job's restarts. When unset or 0, all of them do.",
    0, 365 * _DAY_S,
)  # fmt: skip
MAX_RESTARTS = Setting(
    "TASKD_MAX_RESTARTS", "max_restarts", Format.WHOLE, None, _MANAGER,
    "Recoveries that the whole job may spend. When unset, the `--max_restarts` of torchrun counts.", 0, 2**31 - 1,
)  # fmt: skip
NODE_TIMEOUT_S = Setting(
    "TASKD_NODE_TIMEOUT_S", "node_timeout_s", Format.SECONDS, f"{_MEMBERSHIP.dead_s:g}", _MANAGER,
    "A node whose agent is silent for so long is dead. At least four heartbeats.", 0.04,
)  # fmt: skip
CONFIRM_S = Setting(
    "TASKD_CONFIRM_S", "confirm_s", Format.SECONDS, f"{_DEADLINES.confirm_s:g}", _MANAGER,
    "A rank reports an error and no process is known to be lost: time to wait for the news of a loss.",
)  # fmt: skip
MERGE_WINDOW_S = Setting(
    "TASKD_MERGE_WINDOW_S", "merge_window_s", Format.SECONDS, f"{_DEADLINES.merge_s:g}", _MANAGER,
    "Losses that come within this time of the first are one fault and cost one restart.",
)  # fmt: skip
PAUSE_TIMEOUT_S = Setting(
    "TASKD_PAUSE_TIMEOUT_S", "pause_timeout_s", Format.SECONDS, f"{_DEADLINES.pause_s:g}", _MANAGER,
    "Time for the healthy ranks to leave their collectives; one that does not is replaced.", 0.1,
)  # fmt: skip
PAUSE_LIMIT_S = Setting(
    "TASKD_PAUSE_LIMIT_S", "pause_limit_s", Format.SECONDS, f"{_DEADLINES.pause_limit_s:g}", _MANAGER,
    "The same for one that is inside a checkpoint, or whose state no other rank has.", 0.1,
)  # fmt: skip
REPLACE_TIMEOUT_S = Setting(
    "TASKD_REPLACE_TIMEOUT_S", "replace_timeout_s", Format.SECONDS, f"{_DEADLINES.replace_s:g}", _MANAGER,
    "Time for a new process to start and to run the script up to its resilient function.", 0.1,
)  # fmt: skip
JOIN_TIMEOUT_S = Setting(
    "TASKD_JOIN_TIMEOUT_S", "join_timeout_s", Format.SECONDS, f"{_DEADLINES.join_s:g}", _MANAGER,
    "Time for all ranks to form the new process groups and to restore their state.", 0.1,
)  # fmt: skip
RESUME_TIMEOUT_S = Setting(
    "TASKD_RESUME_TIMEOUT_S", "resume_timeout_s", Format.SECONDS, f"{_DEADLINES.resume_s:g}", _MANAGER,
    "Time for the first step after a recovery; only then does the recovery count as a success.", 0.1,
)  # fmt: skip
HANG_RECOVERY = Setting(
    "TASKD_HANG_RECOVERY", "hang_recovery", Format.SWITCH, "on", _MANAGER,
    "A job that makes no progress is recovered: whoever holds it up is replaced. Off: it is only told who that is.",
)  # fmt: skip
SLOW_RECOVERY = Setting(
    "TASKD_SLOW_RECOVERY", "slow_recovery", Format.SWITCH, "off", _MANAGER,
    "A node that has become slower than the others by 10 % or more gives its place to a node that waits for one. "
    "Off: it is only told of.",
)  # fmt: skip
PIPELINE_STAGES = Setting(
    "TASKD_PIPELINE_STAGES", "pipeline_stages", Format.WHOLE, f"{_POLICY.pipeline_stages}", _MANAGER,
    "Stages of the job's pipeline, if it has one: a stage that has always had more to do than the others is then told "
    "as that, and accuses nobody. Ranks are numbered stage by stage, as by Megatron-LM, or by a device mesh that "
    "begins with the pipeline.", 1, 100_000,
)  # fmt: skip
HANG_MIN_S = Setting(
    "TASKD_HANG_MIN_S", "hang_min_s", Format.SECONDS, f"{_TEMPO.floor_s:g}", _MANAGER,
    "No silence shorter than this is a hang. Longer ones are if the job's own rhythm does not explain them: by default "
    "3 times the usual step.", 0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_FACTOR = Setting(
    "TASKD_HANG_FACTOR", "hang_factor", Format.WHOLE, f"{_TEMPO.factor:.0f}", _MANAGER,
    "So many times the usual step is a hang, once 200 steps are known.", 2, 1_000_000,
)  # fmt: skip
HANG_FIRST_S = Setting(
    "TASKD_HANG_FIRST_S", "hang_first_s", Format.SECONDS, f"{_TEMPO.first_s:g}", _MANAGER,
    "The same before the first step, after a recovery, and until 20 steps are known.", 0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_PHASE_S = Setting(
    "TASKD_HANG_PHASE_S", "hang_phase_s", Format.SECONDS, f"{_TEMPO.phase_s:g}", _MANAGER,
    "The same in the first evaluation and in the first checkpoint; later ones may take 3 times as long as the longest.",
    0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_UNPROVEN_S = Setting(
    "TASKD_HANG_UNPROVEN_S", "hang_unproven_s", Format.SECONDS, f"{_TEMPO.unproven_s:g}", _MANAGER,
    "A rank that holds the others up and may be at work, as one that computes, reads, writes, sleeps or waits for a "
    "child, is told of at once and replaced only after so long, and not before 3 times the longest gap that the job "
    "has shown. That spends no restart. A hang that is proven is not waited for.", 0, 7 * _DAY_S,
)  # fmt: skip
NODE_CHECK = Setting(
    "TASKD_NODE_CHECK", None, Format.SWITCH, "off", _AGENT,
    "Nodes are checked before they may train: each for itself, and in pairs. The same as torchrun's `--node-check`.",
)  # fmt: skip
EXCLUDE_STRAGGLER = Setting(
    "TASKD_EXCLUDE_STRAGGLER", None, Format.SWITCH, "off", _AGENT,
    "A node that the check finds slow is excluded too, and not only told of. The same as `--exclude-straggler`.",
)  # fmt: skip
NODE_CHECK_TIMEOUT_S = Setting(
    "TASKD_NODE_CHECK_TIMEOUT_S", "node_check_timeout_s", Format.SECONDS, f"{_CHECK.timeout_s:g}", _MANAGER,
    "A node check that has not ended after so long has failed. Once others have ended, the time shrinks to what they "
    "have shown to be enough.", 1, 3600,
)  # fmt: skip
NODE_CHECK_MARGIN = Setting(
    "TASKD_NODE_CHECK_MARGIN", "node_check_margin", Format.FACTOR, f"{_CHECK.margin:g}", _MANAGER,
    "A node that computes or copies so many times slower than the others is slow; a link or disk may be 1.5 and 2 "
    "times, a latency 3 times as far off. Machines that only this job uses differ little: 1.2 suits them.", 1.05, 100,
)  # fmt: skip
MANAGER = Setting(
    "TASKD_MANAGER", None, Format.ADDRESS, None, _AGENT,
    "Where the manager is. When unset: the host of MASTER_ADDR or --master-addr, on a job of one node 127.0.0.1 "
    "instead; with neither of them a job of one node has its manager embedded.",
)  # fmt: skip
MANAGER_WAIT_S = Setting(
    "TASKD_MANAGER_WAIT_S", None, Format.SECONDS, "30", _AGENT,
    "Without an answer of the manager for so long, the job goes on with torchrun's own behaviour.",
)  # fmt: skip
STANDBY = Setting(
    "TASKD_STANDBY", None, Format.WHOLE, "1", _AGENT,
    "Processes that each node keeps warm to take the place of a dead rank. 0: cold starts only.", 0, 64,
)  # fmt: skip
PRELOAD = Setting(
    "TASKD_PRELOAD", None, Format.MODULES, "", _AGENT, "Modules that a warm process imports beside torch."
)  # fmt: skip
LEARN_MODULES = Setting(
    "TASKD_LEARN_MODULES", None, Format.SWITCH, "on", _AGENT,
    "Warm processes also import the installed packages that a live worker was seen to have imported.",
)  # fmt: skip
PRELOAD_KEEP = Setting(
    "TASKD_PRELOAD_KEEP", None, Format.SWITCH, "off", (Reader.SHIM,),
    "Keeps libtaskd.so in LD_PRELOAD of training processes: for Ascend, and for scripts that re-execute themselves.",
)  # fmt: skip
NCCL_TIMES = Setting(
    "TASKD_NCCL_TIMES", None, Format.SWITCH, "off", _AGENT,
    "NCCL tells when its kernels run (`libtaskd_core.so` becomes its profiler plugin, from NCCL 2.26 on), so that slow "
    "ranks are found in jobs that use it. Off until it has been measured on GPUs.",
)  # fmt: skip
AGENT_SOCKET = Setting("TASKD_AGENT_SOCKET", None, Format.PATH, None, _WORKER, "Unix socket of the agent.")
AGENT_PID = Setting(
    "TASKD_AGENT_PID", None, Format.WHOLE, None, _WORKER, "Process of the agent; its processes end with it.", 1, 2**22
)  # fmt: skip
GENERATION = Setting(
    "TASKD_GENERATION", None, Format.WHOLE, "0", _WORKER, "Generation in which the process starts.", 0, 2**31 - 1
)  # fmt: skip
TERM = Setting(
    "TASKD_TERM", None, Format.WHOLE, "0", _WORKER,
    "The manager that had the process started: of two managers' processes, none meet.", 0, 2**63 - 1,
)  # fmt: skip
INCARNATION = Setting(
    "TASKD_INCARNATION", None, Format.WHOLE, "0", _WORKER, "Which process of its rank this is.", 0, 2**31 - 1
)  # fmt: skip
JOINS = Setting(
    "TASKD_JOINS", None, Format.SWITCH, "off", _WORKER,
    "The process comes into a living world: it sets up alone, then waits for the others' state.",
)  # fmt: skip
PLACES = Setting(
    "TASKD_PLACES", None, Format.WHOLE, "0", _WORKER,
    "Nodes of the job at its full size, which the global batch is made for. 0: as many as torchrun says.", 0, 100_000,
)  # fmt: skip
MEMBERS = Setting(
    "TASKD_MEMBERS", None, Format.TEXT, None, _WORKER,
    "Ranks of the job that make up a smaller world which starts anew, in its order: `0-3,8-11`. When unset: the first.",
)  # fmt: skip
ROUND = Setting(
    "TASKD_ROUND", None, Format.TEXT, None, _WORKER, "Start of torchrun's whole group that the process is from."
)
STORE_KEY = Setting(
    "TASKD_STORE_KEY",
    None,
    Format.TEXT,
    None,
    _WORKER,
    "What all keys begin with in the store of the manager's choice.",
)
BLACKBOX = Setting("TASKD_BLACKBOX", None, Format.PATH, None, _WORKER, "Black box of the rank.")
POSITION = Setting(
    "TASKD_POSITION", None, Format.PATH, None, _WORKER, "The rank's file of RNG state and data position."
)
RANK = Setting("RANK", None, Format.WHOLE, None, _WORKER, "Global rank: torchrun's own variable.", 0, 2**31 - 1)
LOCAL_WORLD_SIZE = Setting(
    "LOCAL_WORLD_SIZE", None, Format.WHOLE, "1", _WORKER, "Processes of a node: torchrun's own variable.", 1, 1024
)  # fmt: skip

SETTINGS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

_SCRIPT_VARIABLES: Final = frozenset({"TASKD_SO_PATH", "TASKD_WHL", "TASKD_TORCH"})
"""Variables of install and start scripts that happen to carry our prefix."""


def manager_keys() -> tuple[str, ...]:
    """All keys of the dict given to `init_taskd_manager`."""
    return tuple(setting.key for setting in SETTINGS if setting.key is not None)


def unknown_variables(env: Mapping[str, str]) -> tuple[UnknownName, ...]:
    """The variables of `env` that begin with `TASKD_` and that no setting has."""
    known = [setting.variable for setting in SETTINGS if setting.variable is not None]
    ours = (name for name in env if name.startswith(PREFIX) and name not in _SCRIPT_VARIABLES)
    return unknown_names(ours, known)
