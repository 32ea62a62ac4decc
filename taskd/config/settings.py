"""The table of all settings: names, allowed values, meanings.

Rules:

1. `SETTINGS` holds every setting. The parsers accept no other name, and `scripts/make-docs.py` generates
   `docs/configuration.md` from this table.
2. Defaults that belong to the core come from its policies, so no number is written twice.
"""

from collections.abc import Mapping
from typing import Final

from taskd.config.schema import Format, Reader, Setting, UnknownName, unknown_names
from taskd.core.policy import Deadlines, Membership, NodeCheckPolicy, Policy, Tempo

PREFIX: Final = "TASKD_"
EMBEDDED: Final = "embedded"
"""Value of TASKD_MANAGER that requests a manager inside the agent of a job with one node."""

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
    "Switches taskd on in torchrun and in the training processes. When off, both behave exactly as without taskd.",
)  # fmt: skip
JOB_ID = Setting(
    "TASKD_JOB_ID", "job_id", Format.TEXT, "default", _BOTH,
    "Name of the job. The manager and all agents must use the same one. When unset, `MINDX_TASK_ID` is the name.",
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
    "Port of the manager, unless TASKD_MANAGER names one. With 0 the manager takes any free port.", 0, 65_535,
)  # fmt: skip
SECRET = Setting(
    "TASKD_SECRET", "secret", Format.TEXT, None, _BOTH,
    "The job's secret: 128 random bits or more (`openssl rand -hex 32`), the same on all nodes. Manager and agents "
    "derive their keys from it and from the job's name. The ranks do not inherit it. When unset, taskd uses loopback "
    "only, with a secret that it keeps in the run directory.",
)  # fmt: skip
SECRET_FILE = Setting(
    "TASKD_SECRET_FILE", "secret_file", Format.PATH, None, _BOTH,
    "File that holds the job's secret, in place of TASKD_SECRET. Only its owner may be able to read it.",
)  # fmt: skip
INSECURE = Setting(
    "TASKD_INSECURE", "insecure", Format.SWITCH, "off", _BOTH,
    "Allows traffic beyond loopback without a secret. Anybody who reaches the port can then stop the job.",
)  # fmt: skip
RUN_DIR = Setting(
    "TASKD_RUN_DIR", "run_dir", Format.PATH, None, _BOTH,
    "Directory for the job's records. Its path has at most 60 bytes. When unset: `taskd` in `XDG_RUNTIME_DIR` if that "
    "exists, else `taskd-UID` in the directory for temporary files, or in `/tmp` where that path would be longer.",
)  # fmt: skip
HEARTBEAT_S = Setting(
    "TASKD_HEARTBEAT_S", "heartbeat_s", Format.SECONDS, f"{_MEMBERSHIP.heartbeat_s:g}", _BOTH,
    "Time between two reports of an agent when nothing changes. Use the same value on all nodes.", 0.01,
)  # fmt: skip
STRATEGY = Setting(
    "TASKD_RECOVER_STRATEGY", "recover_strategy", Format.STRATEGIES,
    ",".join(one.value for one in _POLICY.strategies.allowed), _MANAGER,
    "The recovery strategies that the job allows. taskd tries them in a fixed order, whatever the order here, and exit "
    "is always the last. When unset, taskd reads the pod's annotation `recover-strategy`.",
    annotation="recover-strategy",
)  # fmt: skip
WAIT_RESCHEDULE_TIMEOUT = Setting(
    "TASKD_WAIT_RESCHEDULE_TIMEOUT", "wait_reschedule_timeout", Format.SECONDS, f"{_DEADLINES.wait_node_s:g}", _MANAGER,
    "How long the manager waits for a node that it has asked the cluster for, before it tries the next strategy. When "
    "unset, taskd reads the pod's annotation `wait-reschedule-timeout`.",
    0.1, 7 * _DAY_S, annotation="wait-reschedule-timeout",
)  # fmt: skip
PODINFO = Setting(
    "TASKD_PODINFO", None, Format.PATH, "/etc/podinfo/annotations", _MANAGER,
    "File of the pod's annotations, as the downward API writes it. It need not exist. A file that cannot be read is an "
    "error if nothing else gives the strategies, and a warning otherwise.",
)  # fmt: skip
NODE_COMMAND = Setting(
    "TASKD_NODE_COMMAND", "node_command", Format.COMMAND, None, _MANAGER,
    "Command line that asks the cluster for a node to replace a lost one. When unset or empty, only a node that comes "
    "by itself replaces a lost one.",
)  # fmt: skip
CHECKPOINT_DIR = Setting(
    "TASKD_CHECKPOINT_DIR", "checkpoint_dir", Format.PATH, None, _BOTH,
    "Directory into which the strategy dump writes its checkpoint, on a file system that all nodes share. All ranks "
    "use the manager's value. Without one the job cannot use dump.",
)  # fmt: skip
RESTART_WINDOW = Setting(
    "TASKD_RESTART_WINDOW", "restart_window", Format.SECONDS, None, _MANAGER,
    "Only recoveries within this many last seconds count against the job's restarts. When unset or 0, all count.",
    0, 365 * _DAY_S,
)  # fmt: skip
MAX_RESTARTS = Setting(
    "TASKD_MAX_RESTARTS", "max_restarts", Format.WHOLE, None, _MANAGER,
    "How many recoveries the whole job may use. When unset, the limit is torchrun's `--max_restarts`.", 0, 2**31 - 1,
)  # fmt: skip
NODE_TIMEOUT_S = Setting(
    "TASKD_NODE_TIMEOUT_S", "node_timeout_s", Format.SECONDS, f"{_MEMBERSHIP.dead_s:g}", _MANAGER,
    "A node whose agent sends nothing for this long counts as dead. At least four heartbeats.", 0.04,
)  # fmt: skip
CONFIRM_S = Setting(
    "TASKD_CONFIRM_S", "confirm_s", Format.SECONDS, f"{_DEADLINES.confirm_s:g}", _MANAGER,
    "How long the manager waits, after a rank's error, for the report of a lost process that explains it.",
)  # fmt: skip
MERGE_WINDOW_S = Setting(
    "TASKD_MERGE_WINDOW_S", "merge_window_s", Format.SECONDS, f"{_DEADLINES.merge_s:g}", _MANAGER,
    "Losses within this time after the first count as one fault and use one restart.",
)  # fmt: skip
PAUSE_TIMEOUT_S = Setting(
    "TASKD_PAUSE_TIMEOUT_S", "pause_timeout_s", Format.SECONDS, f"{_DEADLINES.pause_s:g}", _MANAGER,
    "How long the healthy ranks may take to leave their collectives. A rank that takes longer is replaced.", 0.1,
)  # fmt: skip
PAUSE_LIMIT_S = Setting(
    "TASKD_PAUSE_LIMIT_S", "pause_limit_s", Format.SECONDS, f"{_DEADLINES.pause_limit_s:g}", _MANAGER,
    "How long a rank may take to leave its collectives while it writes a checkpoint, or if no other has its state.",
    0.1,
)  # fmt: skip
REPLACE_TIMEOUT_S = Setting(
    "TASKD_REPLACE_TIMEOUT_S", "replace_timeout_s", Format.SECONDS, f"{_DEADLINES.replace_s:g}", _MANAGER,
    "How long a new process may take to start and to run the script up to its resilient function.", 0.1,
)  # fmt: skip
JOIN_TIMEOUT_S = Setting(
    "TASKD_JOIN_TIMEOUT_S", "join_timeout_s", Format.SECONDS, f"{_DEADLINES.join_s:g}", _MANAGER,
    "How long all ranks may take to form the new process groups and to restore their state.", 0.1,
)  # fmt: skip
RESUME_TIMEOUT_S = Setting(
    "TASKD_RESUME_TIMEOUT_S", "resume_timeout_s", Format.SECONDS, f"{_DEADLINES.resume_s:g}", _MANAGER,
    "How long the first step after a recovery may take. The recovery succeeds when all ranks have committed that step.",
    0.1,
)  # fmt: skip
HANG_RECOVERY = Setting(
    "TASKD_HANG_RECOVERY", "hang_recovery", Format.SWITCH, "on", _MANAGER,
    "Recovers a job that makes no progress: the ranks that hold it up are replaced. When off, taskd only reports them.",
)  # fmt: skip
SLOW_RECOVERY = Setting(
    "TASKD_SLOW_RECOVERY", "slow_recovery", Format.SWITCH, "off", _MANAGER,
    "A node that has become slower than the others by 10 % or more gives its place to a spare node that waits for "
    "one. When off, taskd only reports the slow node.",
)  # fmt: skip
CORRUPTION_RECOVERY = Setting(
    "TASKD_CORRUPTION_RECOVERY", "corruption_recovery", Format.SWITCH, "off", _MANAGER,
    "With `TrainState(verify=\"replicas\")`: a rank whose state has silently become another than that of most of its "
    "replicas is replaced, and uses a restart. If all ranks have copies of a step at which their states were equal, "
    "all go back to it; then two ranks that differ are recovered too. When off, taskd only reports them.",
)  # fmt: skip
PIPELINE_STAGES = Setting(
    "TASKD_PIPELINE_STAGES", "pipeline_stages", Format.WHOLE, f"{_POLICY.pipeline_stages}", _MANAGER,
    "Number of stages of the job's pipeline. taskd then reports a stage that has always had more work than the others "
    "as uneven work, and blames no rank. Ranks are numbered stage by stage, as in Megatron-LM, or in a device mesh "
    "that begins with the pipeline.", 1, 100_000,
)  # fmt: skip
HANG_MIN_S = Setting(
    "TASKD_HANG_MIN_S", "hang_min_s", Format.SECONDS, f"{_TEMPO.floor_s:g}", _MANAGER,
    "The shortest time without a step that counts as a hang. A longer one is a hang if the job's own step times do not "
    "explain it: by default, if it is longer than 3 usual steps.", 0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_FACTOR = Setting(
    "TASKD_HANG_FACTOR", "hang_factor", Format.WHOLE, f"{_TEMPO.factor:.0f}", _MANAGER,
    "Once taskd knows 200 steps, a step that takes this many times as long as usual is a hang.", 2, 1_000_000,
)  # fmt: skip
HANG_FIRST_S = Setting(
    "TASKD_HANG_FIRST_S", "hang_first_s", Format.SECONDS, f"{_TEMPO.first_s:g}", _MANAGER,
    "The time without a step that is a hang before the first step, after a recovery, and until taskd knows 20 steps.",
    0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_PHASE_S = Setting(
    "TASKD_HANG_PHASE_S", "hang_phase_s", Format.SECONDS, f"{_TEMPO.phase_s:g}", _MANAGER,
    "The time without a step that is a hang in the first evaluation and in the first checkpoint. Later ones may take "
    "3 times as long as the longest so far.",
    0.5, 7 * _DAY_S,
)  # fmt: skip
HANG_UNPROVEN_S = Setting(
    "TASKD_HANG_UNPROVEN_S", "hang_unproven_s", Format.SECONDS, f"{_TEMPO.unproven_s:g}", _MANAGER,
    "How long a rank that holds the others up may go on if its hang is not proven, because it may be at work: it "
    "computes, reads, writes, sleeps or waits for a child. taskd reports it at once, and replaces it after this time, "
    "but not before 3 times the longest gap that the job has shown. That uses no restart. A rank with a proven hang is "
    "replaced at once.", 0, 7 * _DAY_S,
)  # fmt: skip
NODE_CHECK = Setting(
    "TASKD_NODE_CHECK", None, Format.SWITCH, "off", _AGENT,
    "Checks nodes before they may train: each by itself, and in pairs. The same as torchrun's `--node-check`.",
)  # fmt: skip
EXCLUDE_STRAGGLER = Setting(
    "TASKD_EXCLUDE_STRAGGLER", None, Format.SWITCH, "off", _AGENT,
    "Excludes nodes that the node check finds slow. When off, taskd only reports them. The same as "
    "`--exclude-straggler`.",
)  # fmt: skip
NODE_CHECK_TIMEOUT_S = Setting(
    "TASKD_NODE_CHECK_TIMEOUT_S", "node_check_timeout_s", Format.SECONDS, f"{_CHECK.timeout_s:g}", _MANAGER,
    "A node check that takes longer than this has failed. When other nodes have finished theirs, taskd shortens the "
    "time to what these have shown to be enough.", 1, 3600,
)  # fmt: skip
NODE_CHECK_MARGIN = Setting(
    "TASKD_NODE_CHECK_MARGIN", "node_check_margin", Format.FACTOR, f"{_CHECK.margin:g}", _MANAGER,
    "The node check reports a node as slow if it computes or copies this many times slower than the others. For a "
    "link the factor is 1.5 times, for a disk 2 times and for a latency 3 times as large. 1.2 suits machines that only "
    "this job uses.", 1.05, 100,
)  # fmt: skip
MANAGER = Setting(
    "TASKD_MANAGER", None, Format.ADDRESS, None, _AGENT,
    "Address of the manager. When unset, it is the host of MASTER_ADDR or --master-addr. A job of one node runs the "
    "manager inside the agent, unless one of these is set and a manager answers on 127.0.0.1 while the job starts.",
)  # fmt: skip
MANAGER_WAIT_S = Setting(
    "TASKD_MANAGER_WAIT_S", None, Format.SECONDS, "30", _AGENT,
    "If the manager does not answer for this long, the job goes on with torchrun's own behaviour.",
)  # fmt: skip
STANDBY = Setting(
    "TASKD_STANDBY", None, Format.WHOLE, "1", _AGENT,
    "Number of warm processes (standbys) that each node keeps to replace dead ranks, beside one in reserve. With 0 all "
    "starts are cold.",
    0, 64,
)  # fmt: skip
STANDBY_SHARED = Setting(
    "TASKD_STANDBY_SHARED", None, Format.SWITCH, "off", _AGENT,
    "Warm processes share their memory: 11 MB of their own together with plain torch, in place of 230 MB. A recovery "
    "then takes some 15 ms longer.",
)  # fmt: skip
SELF_CHECK = Setting(
    "TASKD_SELF_CHECK", None, Format.SELF_CHECK, "auto", _AGENT,
    "Has a job find out in its first steps whether it can go on exactly after a fault: the training function is read, "
    "what it changes outside of the state is looked for, and the third step is done twice and compared. With auto, a "
    "job that starts anew does not do a step twice again; with always, each start does.",
)  # fmt: skip
PRELOAD = Setting(
    "TASKD_PRELOAD", None, Format.MODULES, "", _AGENT, "Modules that a warm process imports in addition to torch."
)  # fmt: skip
LEARN_MODULES = Setting(
    "TASKD_LEARN_MODULES", None, Format.SWITCH, "on", _AGENT,
    "Warm processes also import the installed packages that a live rank has imported.",
)  # fmt: skip
PRELOAD_KEEP = Setting(
    "TASKD_PRELOAD_KEEP", None, Format.SWITCH, "off", (Reader.SHIM,),
    "Keeps libtaskd.so in LD_PRELOAD of training processes: for Ascend, and for scripts that re-execute themselves.",
)  # fmt: skip
INEXACT = Setting(
    "TASKD_INEXACT", None, Format.INEXACT, "refuse", _AGENT,
    "What happens if the self-check has found that a recovery in place would not be exact. With `refuse`, a fault "
    "restarts all processes. With `allow`, taskd only warns, and recovers in place.",
)  # fmt: skip
NCCL_TIMES = Setting(
    "TASKD_NCCL_TIMES", None, Format.SWITCH, "off", _AGENT,
    "Makes `libtaskd_core.so` NCCL's profiler plugin (NCCL 2.26 or newer), so that taskd sees when NCCL's kernels run "
    "and finds slow ranks in jobs that use NCCL. Off until it has been measured on GPUs.",
)  # fmt: skip
AGENT_SOCKET = Setting("TASKD_AGENT_SOCKET", None, Format.PATH, None, _WORKER, "Unix socket of the agent.")
AGENT_PID = Setting(
    "TASKD_AGENT_PID", None, Format.WHOLE, None, _WORKER, "PID of the agent. The node's processes end with it.",
    1, 2**22,
)  # fmt: skip
GENERATION = Setting(
    "TASKD_GENERATION", None, Format.WHOLE, "0", _WORKER, "Generation in which the process starts.", 0, 2**31 - 1
)  # fmt: skip
TERM = Setting(
    "TASKD_TERM", None, Format.WHOLE, "0", _WORKER,
    "Term of the manager that started the process. Processes of two managers never join one group.", 0, 2**63 - 1,
)  # fmt: skip
INCARNATION = Setting(
    "TASKD_INCARNATION", None, Format.WHOLE, "0", _WORKER, "Which process of its rank this is.", 0, 2**31 - 1
)  # fmt: skip
JOINS = Setting(
    "TASKD_JOINS", None, Format.SWITCH, "off", _WORKER,
    "The process joins a world that already trains: it runs its set-up alone, then waits for the others' state.",
)  # fmt: skip
PLACES = Setting(
    "TASKD_PLACES", None, Format.WHOLE, "0", _WORKER,
    "Number of nodes of the full job, for which the global batch is meant. With 0, torchrun's number.", 0, 100_000,
)  # fmt: skip
MEMBERS = Setting(
    "TASKD_MEMBERS", None, Format.TEXT, None, _WORKER,
    "Ranks of the job that form a smaller world which starts anew, in order: `0-3,8-11`. When unset, the first ones.",
)  # fmt: skip
ROUND = Setting(
    "TASKD_ROUND", None, Format.TEXT, None, _WORKER, "Which start of torchrun's worker group the process belongs to."
)
STORE_KEY = Setting(
    "TASKD_STORE_KEY", None, Format.TEXT, None, _WORKER,
    "Prefix of all keys in the store that the manager has chosen.",
)  # fmt: skip
BLACKBOX = Setting("TASKD_BLACKBOX", None, Format.PATH, None, _WORKER, "Black box of the rank.")
POSITION = Setting(
    "TASKD_POSITION", None, Format.PATH, None, _WORKER, "The rank's memory of RNG state and data position."
)
SETUP = Setting(
    "TASKD_SETUP", None, Format.PATH, None, _WORKER, "The rank's memory of what the collectives of its set-up gave."
)
MARKS = Setting(
    "TASKD_MARKS", None, Format.PATH, None, _WORKER, "The rank's memory of what a trainer does only once, as to log."
)
COPIES = Setting(
    "TASKD_COPIES", None, Format.TEXT, None, _WORKER, "The rank's memory for copies of states: paths, joined by `:`."
)
SETUP_DIGEST = Setting(
    "TASKD_SETUP_DIGEST", None, Format.TEXT, None, _WORKER, "Digest of the results of the set-up of the former process."
)
DESCRIPTORS = Setting(
    "TASKD_DESCRIPTORS", None, Format.WHOLE, None, _WORKER,
    "Soft limit of descriptors that the process gets back, where the agent has raised its own.", 0, 2**63 - 1,
)  # fmt: skip
WRAPPED = Setting(
    "TASKD_WRAPPED", None, Format.TEXT, None, _WORKER,
    "Interpreter of torchrun, where a wrapper (`--no-python`) starts the rank. Another interpreter takes no part.",
)  # fmt: skip
SIGCHLD_IGNORED = Setting(
    "TASKD_SIGCHLD_IGNORED", None, Format.WHOLE, None, _WORKER,
    "1: torchrun was started with SIGCHLD ignored, so its ranks ignore it too.", 0, 1,
)  # fmt: skip
CLEANING = Setting(
    "TASKD_CLEANING", None, Format.TEXT, None, _WORKER,
    "Processes that clean up behind former ranks of this node, by number: the script begins when they are done.",
)  # fmt: skip
RANK = Setting("RANK", None, Format.WHOLE, None, _WORKER, "Global rank: torchrun's own variable.", 0, 2**31 - 1)
LOCAL_WORLD_SIZE = Setting(
    "LOCAL_WORLD_SIZE", None, Format.WHOLE, "1", _WORKER, "Processes of a node: torchrun's own variable.", 1, 1024
)  # fmt: skip

SETTINGS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

_SCRIPT_VARIABLES: Final = frozenset({"TASKD_SO_PATH", "TASKD_WHL", "TASKD_TORCH"})
"""Variables of install and start scripts that also have our prefix."""


def manager_keys() -> tuple[str, ...]:
    """Return all keys of the dict given to `init_taskd_manager`."""
    return tuple(setting.key for setting in SETTINGS if setting.key is not None)


def unknown_variables(env: Mapping[str, str]) -> tuple[UnknownName, ...]:
    """Return the variables of `env` that begin with `TASKD_` but belong to no setting."""
    known = [setting.variable for setting in SETTINGS if setting.variable is not None]
    ours = (name for name in env if name.startswith(PREFIX) and name not in _SCRIPT_VARIABLES)
    return unknown_names(ours, known)
