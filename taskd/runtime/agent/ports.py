"""The two ports between the agent's runtime and the launcher of this node's processes (torchrun).

Rules:

1. No torch here. `taskd.adaptors.torchrun` implements `WorkerHost`; `runtime.agent.agent` implements `NodeRuntime`.
2. Every method of `WorkerHost` may be called from any thread. Once the ranks are being ended (`NodeRuntime.stopping`),
   `spawn` and `adopt` raise `RecoveryError`. All other methods still answer.
3. Pids and exit statuses follow `subprocess.Popen`: None while the process runs, -N after signal N.
4. Standbys are children of this process: it is the reaper of the template's orphans (PR_SET_CHILD_SUBREAPER).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from signal import Signals
from typing import Protocol

from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from taskd.wire.messages import Stage


@dataclass(frozen=True)
class NodeIdentity:
    """Identity of this node in torchrun's present rendezvous.

    `given_master_addr` is the user's `--master-addr`, None if it was left at its default.
    """

    node_rank: NodeRank
    node_count: int
    ranks: tuple[JobRank, ...]
    given_master_addr: str | None
    max_restarts: int
    min_nodes: int = 0
    """MIN of `--nnodes=MIN:MAX`; 0 if that is one number."""
    candidate: bool = False
    """True if this node holds no place: `node_rank` and `ranks` mean nothing. Its ranks start when it is given one."""


@dataclass(frozen=True)
class Command:
    """Command of a rank. `argv` is `("script.py", …)` or `("-m", "module", …)`, as in `Become`.

    `python` is False if only a cold start can run it; `reason` is then the reason. `wrapper`: the command runs another
    program, which may start the rank's Python.
    """

    argv: tuple[str, ...]
    python: bool
    reason: str = ""
    wrapper: bool = False


@dataclass(frozen=True)
class Logs:
    """Output files of one incarnation. `stdout` or `stderr` is None for torchrun's own stream."""

    stdout: str | None
    stderr: str | None
    error_file: str | None

    @property
    def environment(self) -> dict[str, str]:
        """Variable by which torch's `@record` finds the error file. It belongs into the rank's environment."""
        return {"TORCHELASTIC_ERROR_FILE": self.error_file or ""}


class WorkerHost(Protocol):
    """Owner of the processes that hold this node's ranks."""

    @property
    def local_ranks(self) -> tuple[LocalRank, ...]:
        """Local ranks of this node."""
        ...

    def rank_of(self, local_rank: LocalRank) -> JobRank:
        """Return the job's rank of a local rank."""
        ...

    def pid(self, local_rank: LocalRank) -> int:
        """Return the pid of the process that holds this rank, dead or alive."""
        ...

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Return the whole environment that torchrun gives to this rank's process, with `worker_environment`."""
        ...

    def command(self, local_rank: LocalRank) -> Command:
        """Return the rank's command."""
        ...

    def open_logs(self, local_rank: LocalRank, incarnation: int) -> Logs:
        """Open new files for a new incarnation, never those of an earlier one. torchrun's tee follows them then."""
        ...

    def spawn(self, local_rank: LocalRank, env: Mapping[str, str], logs: Logs) -> int:
        """Start the rank cold with `env` on top of torchrun's own environment, and return the pid.

        If the rank's present process still runs or is ending, it is fenced with SIGKILL and collected later.
        Raises `RecoveryError` if the ranks are being ended.
        """
        ...

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        """Give this rank to a standby, or to the template itself. Fences as `spawn` does.

        Raises `RecoveryError` if that is not a child of this process, or if the ranks are being ended.
        """
        ...

    def kill(self, local_rank: LocalRank, signal: Signals) -> None:
        """Send a signal to the rank's whole process group. Nothing happens if it is gone.

        For some seconds SIGKILL spares processes that remove the shared memory which the rank leaves (`cleaning`).
        """
        ...

    @property
    def cleaning(self) -> tuple[int, ...]:
        """Processes that still clean up behind former processes of ranks."""
        ...

    def exit_status(self, local_rank: LocalRank) -> int | None:
        """Return the exit status of the rank's process. The rest of a failed one's process group is killed first."""
        ...

    def judge(self, local_rank: LocalRank, status: int | None, stage: Stage) -> int | None:
        """Return the status to record for a process that is ending, or gone, and had reached this stage.

        None if it is not known yet.
        """
        ...

    def start_template(self, env: Mapping[str, str]) -> int:
        """Start the process that forks standbys (`taskd.python.template`) with exactly `env`, and return its pid.

        Only one exists at a time. The former one and its idle standbys are killed first, unless it was adopted as a
        rank. All are killed at the end; idle standbys also when their template has died.
        """
        ...

    def reap_standbys(self) -> tuple[int, ...]:
        """Collect dead standbys and a dead template, without blocking, and return their pids."""
        ...

    def assign(self, place: NodeRank) -> None:
        """Give this place to the node: its ranks are those of the place from now on."""
        ...

    def dismiss(self) -> None:
        """End this node, whether it holds a place or not, because the job has ended well."""
        ...

    def manage(self) -> None:
        """Let taskd handle failed ranks. This holds at the start; a call restores it after `stock`."""
        ...

    def stock(self) -> None:
        """Leave failed ranks to torchrun and its own budget: the first one restarts or ends the whole group."""
        ...

    def give_up(self, reason: str) -> None:
        """End the job on this node, with torchrun's own error report and no restart."""
        ...


class Templates(Protocol):
    """Source of templates (`WorkerHost.start_template`) before there is a rank."""

    def start(self, env: Mapping[str, str]) -> int:
        """Start a template with exactly `env`, in place of the former one, and return its pid."""
        ...

    def reap(self) -> tuple[int, ...]:
        """Collect dead standbys and a dead template, without blocking, and return their pids."""
        ...


class Outlook(Enum):
    """Phase of the job as a starting node finds it."""

    UNKNOWN = "unknown"  # no manager has answered
    FORMING = "forming"  # the job starts, and this node with it
    LIVING = "living"  # the job trains already: this node waits for a place


class NodeRuntime(Protocol):
    """The agent's interface for torchrun's main thread."""

    def ask(self, wants: NodeRank, local_ranks: int, least: int, templates: Templates) -> None:
        """Announce this node to the manager, for the place `wants` (or -1). `outlook` returns the answer.

        The node is to have `local_ranks` ranks. `least` is MIN of `--nnodes=MIN:MAX`, 0 if that is one number.
        """
        ...

    @property
    def ended(self) -> bool:
        """True if the agent has ended by an error: processes that start now are torchrun's alone."""
        ...

    @property
    def checks(self) -> bool:
        """True if this node is to be checked before it trains."""
        ...

    def await_check(self) -> str:
        """Wait until this node was checked, or no manager leads it; return why it must leave the job, or ""."""
        ...

    def outlook(self, timeout_s: float | None) -> Outlook:
        """Return the manager's last answer; wait for it `timeout_s`, or with None as long as the settings allow."""
        ...

    @property
    def places(self) -> int | None:
        """Number of places of the job, as the manager reports it; None while it is unknown."""
        ...

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the ranks of all nodes have ended well, as this node's have.

        Return False without a wait if torchrun's own barrier is to do it.
        """
        ...

    def worker_environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Return the variables that a new process of this rank gets (rank 2's black box, the agent's socket, …)."""
        ...

    def started(self, host: WorkerHost, identity: NodeIdentity) -> None:
        """Take over this node's ranks, which all run. Called again, with a new host, after a restart of the group."""
        ...

    def stopping(self) -> None:
        """Report that this node leaves, and recover nothing: torchrun is about to end all ranks.

        Keep the sockets of the processes open: the script may use its time between SIGTERM and SIGKILL. `started`
        may follow (a restart of the group), or `stop`.
        """
        ...

    def stop(self, *, deserts: bool = False) -> None:
        """Close everything: the ranks have ended, and so does torchrun. May be called twice.

        With `deserts` the ranks go on, and are torchrun's alone.
        """
        ...
