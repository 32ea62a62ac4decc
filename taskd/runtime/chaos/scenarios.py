"""Scenarios that act on processes of the job: kill, stop, delay, and the kill of every node check.

Rules:

1. A rank's process is looked up before every signal, because the previous one may have been replaced.
2. A process that somebody else has stopped is left alone. To continue it would undo a change that taskd chaos has not
   made.
"""

import os
import signal
from typing import Final

from taskd.core.diagnosis.evidence import RunState
from taskd.errors import ChaosError
from taskd.runtime.chaos.cleanup import Cleanup, Resume
from taskd.runtime.chaos.job import LocalJob
from taskd.runtime.chaos.scenario_run import ScenarioRun, say
from taskd.runtime.chaos.target import TargetProcess, open_handle, send
from taskd.wire.kinds import JobRank

_LOOK_S: Final = 0.05
"""Interval of searches for processes, in seconds. A node check lasts longer."""


def kill_checks(run: ScenarioRun, job: LocalJob) -> int:
    """Kill the processes of this node's check as soon as they appear, again and again. Returns how many."""
    if run.dry:
        say(f"would do: kill each node check below {job.agent} as soon as it appears; now there: {len(job.checks())}")
        return 0
    say(f"waiting for node checks below {job.agent} of job {job.job_id}; Ctrl-C ends it")
    struck: set[TargetProcess] = set()
    while run.on:
        for one in job.checks():
            if one not in struck and send(one, signal.SIGKILL, job.owns):
                say(f"{one}: SIGKILL")
                struck.add(one)
        run.pause(_LOOK_S)
    return len(struck)


def kill(run: ScenarioRun, job: LocalJob, rank: JobRank, every_s: float | None) -> None:
    """Kill a rank, once or again and again."""
    first = True
    while first or (every_s is not None and run.pause(every_s)):
        target = _present(job, rank, first=first)
        first = False
        if target is not None and run.act(f"{target}: SIGKILL"):
            _signal(job, target, signal.SIGKILL)


def stop(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, rank: JobRank) -> None:
    """Stop a rank until the scenario ends, or the process does."""
    target = _present(job, rank, first=True)
    if target is None or not _may_stop(target) or not run.act(f"{target}: SIGSTOP"):
        return
    with _Handle(target) as handle:
        number = cleanup.keep(Resume(target.pid, target.start_ticks, target.name))
        _signal(job, target, signal.SIGSTOP)
        run.pause(None, handle)
    if target.stat is None:
        cleanup.drop(number)
        say(f"{target} has ended: taskd, or somebody else, has replaced it; nothing to undo")


def delay(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, rank: JobRank, stop_s: float, every_s: float) -> None:
    """Stop a rank for a while again and again, which makes it slower by that share."""
    share = f"{stop_s * 1e3:g} ms of every {every_s:g} s: {stop_s / every_s:.0%} of its time"
    target, number, turns = None, -1, 0
    while run.on or run.dry:
        found = _present(job, rank, first=target is None)
        if found != target and found is not None:
            number = _change(cleanup, number, None if run.dry else found)
            if not run.act(f"{found}: stands {share} (SIGSTOP, SIGCONT)"):
                break
            target = found
        if found is not None and _may_stop(found):
            turns += 1
            _stand(run, job, found, stop_s)
        if not run.pause(every_s - stop_s):
            break
    if turns:
        say(f"rank {rank} stood {turns} times")


def _change(cleanup: Cleanup, number: int, target: TargetProcess | None) -> int:
    if number >= 0:
        cleanup.drop(number)
    return -1 if target is None else cleanup.keep(Resume(target.pid, target.start_ticks, target.name))


def _stand(run: ScenarioRun, job: LocalJob, target: TargetProcess, stop_s: float) -> None:
    if send(target, signal.SIGSTOP, job.owns):
        try:
            run.pause(stop_s)
        finally:
            send(target, signal.SIGCONT, lambda _pid: True)


def _present(job: LocalJob, rank: JobRank, *, first: bool) -> TargetProcess | None:
    """Return the rank's process. None, with a printed line, if it is being replaced.

    At the `first` time that is an error: raises `ChaosError`.
    """
    target = job.rank(rank)
    if target is None and job.lives:
        if first:
            raise ChaosError(f"rank {rank} has no process at this moment: it is being replaced; try again")
        say(f"rank {rank} has no process yet")
    return target


def _may_stop(target: TargetProcess) -> bool:
    known = target.stat
    if known is not None and known.state in (RunState.STOPPED, RunState.TRACED):
        raise ChaosError(f"{target} is stopped already, by somebody else; let it go on first: kill -CONT {target.pid}")
    return known is not None


def _signal(job: LocalJob, target: TargetProcess, number: signal.Signals) -> None:
    if not send(target, number, job.owns):
        say(f"{target} has just ended by itself")


class _Handle:
    """A pidfd, which can be read when the process has ended. Raises `ChaosError` if it has ended already."""

    def __init__(self, target: TargetProcess) -> None:
        try:
            self._handle = open_handle(target.pid)
        except ProcessLookupError:
            raise ChaosError(f"{target} has just ended by itself; try again") from None

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
