"""The two ports between the agent's runtime and whatever launched the processes of this node (torchrun).

Rules:

1. No torch here. `taskd.adaptors.torchrun` implements `WorkerHost`; `runtime.agent.agent` implements `NodeRuntime`.
2. Every method of `WorkerHost` may be called from any thread. Once the ranks are being ended (`NodeRuntime.stopping`),
   `spawn` and `adopt` raise `RecoveryError` and everything else still answers.
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
    """What torchrun knows about this node in its present rendezvous.

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
    """This node holds no place: `node_rank` and `ranks` mean nothing. Its ranks are started when it is given one."""


@dataclass(frozen=True)
class Command:
    """What a rank runs. `argv` is `("script.py", …)` or `("-m", "module", …)`, as in `Become`.

    `python` is False where only a cold start can run it; `reason` then says why. `wrapper`: another program is run,
    which may start the rank's Python.
    """

    argv: tuple[str, ...]
    python: bool
    reason: str = ""
    wrapper: bool = False


@dataclass(frozen=True)
class Logs:
    """Files of one incarnation. None of `stdout` or `stderr` means torchrun's own stream."""

    stdout: str | None
    stderr: str | None
    error_file: str | None

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which torch's `@record` finds the error file. Belongs into the rank's environment."""
        return {"TORCHELASTIC_ERROR_FILE": self.error_file or ""}


class WorkerHost(Protocol):
    """Owns the processes that hold this node's ranks."""

    @property
    def local_ranks(self) -> tuple[LocalRank, ...]:
        """Local ranks of this node."""
        ...

    def rank_of(self, local_rank: LocalRank) -> JobRank:
        """Its rank in the job."""
        ...

    def pid(self, local_rank: LocalRank) -> int:
        """The process that holds this rank, dead or alive."""
        ...

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        """The whole environment that torchrun gives to a process of this rank, `worker_environment` included."""
        ...

    def command(self, local_rank: LocalRank) -> Command:
        """What the rank runs."""
        ...

    def open_logs(self, local_rank: LocalRank, incarnation: int) -> Logs:
        """New files for a new incarnation, never those of an earlier one. torchrun's tee follows them from now on."""
        ...

    def spawn(self, local_rank: LocalRank, env: Mapping[str, str], logs: Logs) -> int:
        """Cold start of the rank with `env` on top of torchrun's own environment. Returns the pid.

        The rank's present process, should it still run or be ending, is fenced with SIGKILL and collected later.
        Raises `RecoveryError` if the ranks are being ended.
        """
        ...

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        """A standby, or the template itself, has become this rank. Fences as `spawn` does.

        Raises `RecoveryError` if it is not a child of this process, or if the ranks are being ended.
        """
        ...

    def kill(self, local_rank: LocalRank, signal: Signals) -> None:
        """Send a signal to the rank's whole process group. Nothing happens if it is gone.

        SIGKILL spares, for some seconds, processes that remove the shared memory which the rank leaves (`cleaning`).
        """
        ...

    @property
    def cleaning(self) -> tuple[int, ...]:
        """Processes that still clean up behind former processes of ranks."""
        ...

    def exit_status(self, local_rank: LocalRank) -> int | None:
        """How the rank's process ended. Whoever is left in the process group of a failed one is killed first."""
        ...

    def judge(self, local_rank: LocalRank, status: int | None, stage: Stage) -> int | None:
        """What to make of that status of a process which is ending, or gone, and had come to this stage."""
        ...

    def start_template(self, env: Mapping[str, str]) -> int:
        """Start the process that forks standbys (`taskd.python.template`) with exactly `env`. Returns its pid.

        One at a time: the one before, its idle standbys included, is killed first (unless it was adopted as a rank).
        All are killed at the end; idle standbys also when their template has died.
        """
        ...

    def reap_standbys(self) -> tuple[int, ...]:
        """Collect dead standbys and a dead template, without blocking. Returns the pids collected."""
        ...

    def assign(self, place: NodeRank) -> None:
        """This node holds this place from now on: its ranks are those of the place."""
        ...

    def dismiss(self) -> None:
        """The job has ended well, and with it this node, whether it holds a place or not."""
        ...

    def manage(self) -> None:
        """taskd decides what happens to failed ranks. So it is at the start, and again after `stock`."""
        ...

    def stock(self) -> None:
        """torchrun decides from now on, with its own budget: the first failed rank restarts or ends the whole group."""
        ...

    def give_up(self, reason: str) -> None:
        """End the job on this node, with torchrun's own error report and no restart."""
        ...


class Templates(Protocol):
    """Starts and collects templates (`WorkerHost.start_template`) where there is no rank yet."""

    def start(self, env: Mapping[str, str]) -> int:
        """Start one, in place of the one before, with exactly `env`. Returns its pid."""
        ...

    def reap(self) -> tuple[int, ...]:
        """Collect dead standbys and a dead template, without blocking. Returns the pids collected."""
        ...


class Outlook(Enum):
    """What a node that starts finds."""

    UNKNOWN = "unknown"  # no manager has answered
    FORMING = "forming"  # the job starts, and this node with it
    LIVING = "living"  # the job trains already: this node waits for a place


class NodeRuntime(Protocol):
    """The agent's own loop. Called from torchrun's main thread."""

    def ask(self, wants: NodeRank, local_ranks: int, least: int, templates: Templates) -> None:
        """Tell the manager that this node comes, meant for the place `wants` (or -1). `outlook` has the answer.

        It is to have so many ranks. `least` is MIN of `--nnodes=MIN:MAX`, 0 if that is one number.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether it has ended by an error: processes that start now are torchrun's alone."""
        ...

    @property
    def checks(self) -> bool:
        """Whether this node is to be checked before it trains."""
        ...

    def await_check(self) -> str:
        """Wait until it was, or nobody leads it: why it must leave the job, or nothing."""
        ...

    def outlook(self, timeout_s: float | None) -> Outlook:
        """What the manager has answered last; it is awaited so long, with None as long as the settings say."""
        ...

    @property
    def places(self) -> int | None:
        """Places of the job, as the manager says; None while that is unknown."""
        ...

    def await_end(self, timeout_s: float) -> bool:
        """This node's ranks have ended well: wait until the others' have. False: torchrun's own barrier is to do it."""
        ...

    def worker_environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Variables that a new process of this rank gets (rank 2's black box, the agent's socket, …)."""
        ...

    def started(self, host: WorkerHost, identity: NodeIdentity) -> None:
        """All ranks of this node run. Called again after torchrun has restarted the group, with a new host."""
        ...

    def stopping(self) -> None:
        """torchrun is about to end all ranks: say that this node leaves, and recover nothing.

        Keep the sockets of the processes open: the script may use its time between SIGTERM and SIGKILL. `started`
        may follow (a restart of the group), or `stop`.
        """
        ...

    def stop(self, *, deserts: bool = False) -> None:
        """The ranks have ended, and so does torchrun: close everything. May be called twice.

        With `deserts` they go on, and are torchrun's alone.
        """
        ...
