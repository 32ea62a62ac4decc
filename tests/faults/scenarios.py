"""The scenarios of `tests.faults`: each one a fault, its injection, and its expected report."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.e2e.job import lives
from tests.faults import cgroups
from tests.faults.job import FaultJob, TwoNodesJob
from tests.faults.judge import CRASH_S, HANG_S, HANG_STEPS, Expected
from tests.faults.plan import Plan

VICTIM = 2
EARLY = 200
"""Step of a fault that is reported at once ..."""
SETTLED = 225
LATE = 240
"""... and of one whose report depends on the job's rhythm, which must be known."""
QUICK_MS = 10.0
STEP_MS = 50.0
AFTER = 40
TOLD_S = 15.0
"""Our own limit for faults on which no process waits. The goal has no deadline for them."""
SLOW_S = 20.0
"""Steps of less than a second are read once a second. Six readings are needed for the noise, and six more."""
NODE_LOST_S = 2.0
SMALL_BYTES = 256 << 20
TIMEOUT_S = 5.0
SHORT_UNPROVEN_S = 3.0

Play = Callable[[FaultJob], list[str]]


def nothing(_job: FaultJob) -> list[str]:
    """Do nothing: the victim makes the fault."""
    return []


@dataclass(frozen=True)
class Scenario:
    """One fault.

    Attributes:
        fault: a name of `tests.faults.injections`; "": `play` makes it.
        injection: how it is made, for people.
        play: called when the job runs; it returns defects.
        cgroup: makes the cgroup that the victim enters.
        nodes: 2: each with half of the ranks.
        unproven_s: limit for ranks that may be at work; 0 leaves the default, which no scenario waits for.
    """

    name: str
    injection: str
    expected: Expected
    fault: str = ""
    victims: tuple[int, ...] = (VICTIM,)
    at: int = LATE
    after: int = AFTER
    play: Play = nothing
    cgroup: Callable[[str], AbstractContextManager[Path | None]] = field(default=lambda _: nullcontext(None))
    nodes: int = 1
    tells_loss: bool = False
    unproven_s: float = 0.0

    def plan(self, folder: Path, cgroup: Path | None) -> Plan:
        """Return the plan for the ranks."""
        plan = Plan(str(folder), self.fault, self.victims, self.at, self.at + self.after, SETTLED, QUICK_MS, STEP_MS)
        return replace(plan, cgroup=str(cgroup or ""), tells_loss=self.tells_loss, unproven_s=self.unproven_s)

    @property
    def step_ms(self) -> float:
        """Length of the steps before the fault, in milliseconds."""
        return STEP_MS if self.at > SETTLED else QUICK_MS


def crash(name: str, fault: str, injection: str, *kinds: str, culprits: tuple[int, ...] = (VICTIM,)) -> Scenario:
    """Return a scenario in which a process ends by itself."""
    expected = Expected(kinds, (culprits,), CRASH_S, recovers=True, replaced=culprits)
    return Scenario(name, injection, expected, fault, culprits, at=EARLY)


def hang(name: str, fault: str, injection: str, *kinds: str) -> Scenario:
    """Return a scenario in which a process stays, and the job gets no further."""
    limit_s = HANG_STEPS * STEP_MS / 1000 + HANG_S
    expected = Expected(kinds, ((VICTIM,),), limit_s, recovers=True, replaced=(VICTIM,))
    return Scenario(name, injection, expected, fault)


def keeps_process(scenario: Scenario) -> Scenario:
    """Let the culprit go on in its process: the step is done again."""
    return replace(scenario, expected=replace(scenario.expected, replaced=()))


def unproven(scenario: Scenario) -> Scenario:
    """Let the hang be possible work: it is reported like others, and recovered after `TASKD_HANG_UNPROVEN_S`."""
    return replace(scenario, expected=replace(scenario.expected, proven=False), unproven_s=SHORT_UNPROVEN_S)


def strike(job: FaultJob) -> int:
    """Record the player's fault now. Return the pid of the victim."""
    pid = job.await_reached()
    job.plan.strike("player")
    return pid


def terminate(job: FaultJob) -> list[str]:
    os.kill(strike(job), signal.SIGTERM)
    return []


def no_child_lives(job: FaultJob) -> list[str]:
    """Return a defect if a child of the dead rank still lives after the recovery."""
    job.await_strike()
    job.recovered(1)
    children = job.children(VICTIM)
    until_s = time.monotonic() + TIMEOUT_S
    while left := [child for child in children if lives(child)]:
        if time.monotonic() > until_s:
            return [f"children of the dead rank live: {left}"]
        time.sleep(0.01)  # they are not children of this process
    return []


def cut_data(job: FaultJob) -> list[str]:
    """Cut the second network until the diagnosis, or until it is too late for one."""
    assert isinstance(job, TwoNodesJob)
    strike(job)
    job.cut_data(1)
    return _mended_after(job, lambda: job.mend_data(1))


def cut_all(job: FaultJob) -> list[str]:
    assert isinstance(job, TwoNodesJob)
    strike(job)
    job.cut_all(1)
    return _mended_after(job, lambda: job.mend_all(1))


def _mended_after(job: FaultJob, mend: Callable[[], None]) -> list[str]:
    try:
        job.wait(job.diagnoses, "a diagnosis of the cut", 15.0)
    finally:
        mend()
    return []


MISMATCHES = ("SKIPPED", "SIZE_MISMATCH", "OP_MISMATCH")

SCENARIOS: tuple[Scenario, ...] = (
    crash("SIGKILL", "kill", "kill(own pid, SIGKILL)", "KILLED"),
    crash("SIGKILL of two ranks at once", "kill", "ranks 1 and 2 do so in one step", "KILLED", culprits=(1, 2)),
    crash("SIGSEGV in native code", "crash", "a C function called by ctypes writes to address 16", "CRASHED"),
    crash("SIGSEGV in a thread", "crash in a thread", "the same, in a thread of Python", "CRASHED"),
    crash("SIGBUS", "truncate", "reads a mapped file that was truncated", "CRASHED"),
    crash("abort", "abort", "os.abort()", "ABORTED"),
    crash("exit status 3", "exit", "os._exit(3)", "EXITED"),
    crash("exit too early", "exit early", "sys.exit(0) in the middle of the training", "EXITED_EARLY"),
    crash("uncaught exception", "exception", "looks up a key that is not there", "EXCEPTION"),
    crash("MemoryError", "memory", "asks torch for 2^52 floats", "OOM_HOST"),
    replace(crash("SIGTERM from outside", "", "another process sends SIGTERM", "KILLED"), play=terminate),
    hang("SIGSTOP", "stop", "kill(own pid, SIGSTOP)", "STOPPED"),
    replace(hang("freezer", "freeze", "enters a frozen cgroup (v2)", "FROZEN"), cgroup=cgroups.frozen),
    replace(hang("freezer of v1", "freeze", "enters a frozen cgroup (v1)", "FROZEN"), cgroup=cgroups.frozen_by_first),
    unproven(hang("GIL held by a C loop", "gil", "a C function called by ctypes.PyDLL loops", "GIL_HELD")),
    hang("uninterruptible sleep", "uninterruptible", "vfork(), whose child never ends", "UNINTERRUPTIBLE"),
    hang("Python deadlock", "deadlock", "two threads take two locks in another order", "DEADLOCK"),
    unproven(hang("store wait", "store", "waits for a key of the store that nobody sets", "BLOCKED")),
    unproven(hang("infinite loop in Python", "loop", "while True: turns += 1", "LOOP")),
    unproven(
        hang("data loader blocked", "data", "the loader's process reads a pipe that nobody writes to", "DATA_BLOCKED")
    ),
    keeps_process(hang("a collective skipped", "skip", "leaves out the second all_reduce of a step", *MISMATCHES)),
    hang("left the training early", "leave", "returns from the training function", "SKIPPED"),
    keeps_process(hang("another size", "size", "all_reduce of 32 numbers, the others have 16", "SIZE_MISMATCH")),
    hang("another operation", "op", "all_gather where the others call all_reduce", "OP_MISMATCH"),
    keeps_process(crash("disk full at a checkpoint", "disk", "torch.save to a full tmpfs", "DISK_FULL")),
    replace(
        crash(
            "host OOM in a memory cgroup", "outgrow", "lives in a cgroup of 256 MiB, and touches 1 GiB", "OOM_CGROUP"
        ),
        cgroup=partial(cgroups.small, size_bytes=SMALL_BYTES),
    ),
    Scenario(
        "connection cut between the ranks",
        "the veth of one node that carries the ranks' traffic goes down; the manager's stays",
        Expected(("CONNECTION_CUT",), ((), (2, 3)), HANG_STEPS * STEP_MS / 1000 + HANG_S, recovers=True),
        play=cut_data,
        nodes=2,
    ),
    Scenario(
        "node cut off",
        "both veths of one node go down",
        Expected(("SILENT", "CONNECTION_CUT"), ((2, 3),), HANG_STEPS * STEP_MS / 1000 + HANG_S, recovers=True),
        play=cut_all,
        nodes=2,
    ),
    Scenario(
        "NaN loss",
        "one number of a batch is NaN",
        Expected(("NON_FINITE",), ((VICTIM,),), TOLD_S, recovers=False),
        "not finite",
        at=EARLY,
        tells_loss=True,
    ),
    Scenario(
        "slow rank",
        "sleeps 60 ms more in each step",
        Expected(("SLOW",), ((VICTIM,),), SLOW_S, recovers=False),
        "slow",
        at=EARLY,
        after=200,
    ),
    replace(
        crash("orphaned data loader child", "orphan", "SIGKILL while its loader's process is blocked", "KILLED"),
        expected=Expected(("KILLED",), ((VICTIM,),), CRASH_S, recovers=True, facts=("ORPHANED",)),
        play=no_child_lives,
    ),
)
