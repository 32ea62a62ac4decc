"""Execution of the manager's orders to check this node: the check processes, their ends, their results.

Rules:

1. A check process is a standby that gets `RunCheck`: it imports nothing more, and ends when it has answered. There
   is one for each local rank of each trial. Those of the first trial check their own devices before.
2. Every process has an end: by its own time limit, and by SIGKILL soon after. If its mate in the same trial has failed,
   it waits in vain and gets `IN_VAIN_S` more.
3. An order is carried out once. A repeated order may only shorten the time.
"""

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from signal import SIGKILL

import msgspec

from taskd.core.nodecheck.probes import lost, merge_own, merge_trial
from taskd.runtime.agent.deaths import DeathWatch, ProcessEnd, ending_status
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.bounds import LONGEST_S
from taskd.wire.checks import CheckOrder, CheckReport, CheckState, Cleared, Own, Trial, TrialResult
from taskd.wire.kinds import LocalRank
from taskd.wire.probes import ProbeOrder, ProbeResult
from taskd.wire.standbys import RunCheck

logger = logging.getLogger(__name__)
IN_VAIN_S = 2.0
_LATE_S = 1.0
"""Time from a process's own limit to its kill. Its own report holds more than its killer's."""


@dataclass(slots=True)
class CheckTask:
    """One check process: its order and its results. `due_s` counts once it has begun."""

    order: ProbeOrder
    due_s: float
    peer: Peer | None = None
    own: Own | None = None
    trial: TrialResult | None = None

    @property
    def peer_node(self) -> str:
        """Other node of its trial; empty without one."""
        return "" if self.order.trial is None else self.order.trial.peer

    @property
    def lacks(self) -> ProbeOrder:
        """Part of its order that is not answered yet."""
        order = self.order
        trial = order.trial if self.trial is None else None
        return msgspec.structs.replace(order, own=order.own and self.own is None, trial=trial)

    @property
    def done(self) -> bool:
        """True if the whole order is answered."""
        return not self.lacks.own and self.lacks.trial is None

    @property
    def failed(self) -> bool:
        """True if one of its answers reports a failure."""
        return any(part is not None and not part.ok for part in (self.own, self.trial))

    @property
    def result(self) -> ProbeResult:
        """Results so far."""
        return ProbeResult(local_rank=self.order.local_rank, own=self.own, trial=self.trial)


class NodeChecker:
    """Node checks of one agent. Used by the agent's thread."""

    def __init__(self, pool: StandbyPool, deaths: DeathWatch, run_dir: Path) -> None:
        self._pool = pool
        self._deaths = deaths
        self._run_dir = run_dir
        self._state: CheckState | None = None
        self._order: CheckOrder | None = None
        self._tasks: list[CheckTask] = []
        self._started_s = 0.0
        self._clock_s = 0.0

    @property
    def state(self) -> CheckState | None:
        """State that the manager receives; None if this node is not checked."""
        if self._state is None:
            return None
        return msgspec.structs.replace(self._state, ready=self._pool.count > 0 or self._pool.pending)

    @property
    def due_s(self) -> float:
        """Time at which `expire` has something to do."""
        return min((task.due_s + _LATE_S for task in self._tasks if not task.done), default=inf)

    def ask_for(self, local_ranks: int, *, strict: bool) -> None:
        """Request a check of this node before it may train. `strict`: slow nodes are to be excluded too."""
        self._state = CheckState(wants=True, strict=strict)
        self._pool.want(local_ranks)
        self._pool.open()  # the imports of a check process take longer than the check
        self._pool.hurry()

    def clear(self, message: Cleared) -> None:
        """Record that this node may train."""
        if self._state is not None and not self._state.cleared:
            self._state = msgspec.structs.replace(self._state, cleared=True)
            logger.info("this node was checked and may train%s", f": {message.note}" if message.note else "")

    # ---- an order

    def obey(self, order: CheckOrder, local_ranks: int) -> None:
        """Begin an order of the manager, unless it is an old one."""
        if self._order is not None and order.number <= self._order.number:
            if order.number == self._order.number:
                self._hurry(order.timeout_s)
            return
        self._kill_all()
        self._order, self._started_s = order, time.monotonic()
        self._clock_s = max(-LONGEST_S, min(time.time() - order.clock_s, LONGEST_S))
        trials: tuple[Trial | None, ...] = order.trials or (None,)
        self._tasks = [
            CheckTask(self._order_of(order, trial, local_rank, local_ranks), self._started_s + order.timeout_s)
            for trial in trials
            for local_rank in map(LocalRank, range(local_ranks))
        ]
        self._pool.open()
        self._pool.hurry()
        self._tell()
        self.serve()

    def _order_of(self, order: CheckOrder, trial: Trial | None, local_rank: LocalRank, local_ranks: int) -> ProbeOrder:
        first = trial is None or trial == order.trials[0]
        return ProbeOrder(
            own=order.own and first,
            trial=trial,
            local_rank=local_rank,
            local_world_size=local_ranks,
            run_dir=os.fsencode(self._run_dir),
            timeout_s=order.timeout_s,
        )

    def _hurry(self, timeout_s: float) -> None:
        for task in self._tasks:
            task.due_s = min(task.due_s, self._started_s + timeout_s)

    def serve(self) -> None:
        """Give work to the standbys that exist, and request the missing ones."""
        waiting = [task for task in self._tasks if task.peer is None and not task.done]
        while waiting and (peer := self._pool.take()) is not None:
            task = waiting[0]
            left_s = max(0.1, task.due_s - time.monotonic())
            if peer.send(RunCheck(order=msgspec.structs.replace(task.order, timeout_s=left_s))):
                task.peer = peer
                self._deaths.watch(peer.pid, None)
                waiting.pop(0)
        if waiting:
            self._pool.refill(waiting=len(waiting))

    # ---- results

    def hear(self, peer: Peer, result: ProbeResult) -> None:
        """Record the answer of a check process."""
        task = next((task for task in self._tasks if task.peer is peer), None)
        if task is not None and not task.done:
            self._settle(task, result)

    def ended(self, ending: ProcessEnd) -> bool:
        """Return whether a check process of the present order has ended. If it has not answered, it has failed."""
        task = next((task for task in self._tasks if task.peer is not None and task.peer.pid == ending.pid), None)
        if task is None:
            return False
        if ending.gone and not task.done:
            self._settle(task, lost(task.lacks, ending_status(ending.pid) or 0, self._passed_s))
        return True

    @property
    def _passed_s(self) -> float:
        return time.monotonic() - self._started_s

    def expire(self) -> None:
        """Kill check processes whose time is over."""
        now_s = time.monotonic()
        for task in self._tasks:
            if not task.done and now_s >= task.due_s + _LATE_S:
                if task.peer is not None:
                    _kill(task.peer.pid)
                self._settle(task, self._given_up(task))

    def close(self) -> None:
        """End all check processes."""
        self._kill_all()
        self._tasks.clear()

    def _given_up(self, task: CheckTask) -> ProbeResult:
        """Return the result of a check whose time is over. In a trial, it has waited for the other node."""
        lacking, trial, passed_s = task.lacks, task.lacks.trial, self._passed_s
        if task.peer is not None and (lacking.own or trial is None):
            return lost(lacking, None, passed_s)
        cause = f"no {'answer' if task.peer is not None else 'process to check it'} within {passed_s:.0f} s"
        own = Own(ok=False, cause=cause, elapsed_s=passed_s) if lacking.own else None
        failed = None if trial is None else TrialResult(peer=trial.peer, ok=False, cause=cause, elapsed_s=passed_s)
        return ProbeResult(local_rank=lacking.local_rank, own=own, trial=failed)

    def _settle(self, task: CheckTask, result: ProbeResult) -> None:
        task.own, task.trial = task.own or result.own, task.trial or result.trial
        if task.failed:
            for mate in self._tasks:
                if mate.peer_node == task.peer_node:
                    mate.due_s = min(mate.due_s, time.monotonic() + IN_VAIN_S)
        self._tell()

    def _kill_all(self) -> None:
        for task in self._tasks:
            if task.peer is not None and not task.done:
                _kill(task.peer.pid)

    def _tell(self) -> None:
        order = self._order
        if order is None:
            return
        done = all(task.done for task in self._tasks)
        own = self._own() if done else None
        report = CheckReport(number=order.number, done=done, own=own, trials=tuple(self._trials(order)))
        self._state = msgspec.structs.replace(self._state or CheckState(), report=report)

    def _own(self) -> Own | None:
        own = merge_own(_results(task for task in self._tasks if task.order.own))
        return None if own is None else msgspec.structs.replace(own, clock_s=self._clock_s)

    def _trials(self, order: CheckOrder) -> list[TrialResult]:
        """Return the results of trials that have ended."""
        ended = (tasks for tasks in map(self._tried, order.trials) if all(task.trial is not None for task in tasks))
        found = [merge_trial(_results(tasks)) for tasks in ended]
        return [trial for trial in found if trial is not None]

    def _tried(self, trial: Trial) -> list[CheckTask]:
        return [task for task in self._tasks if task.order.trial == trial]


def _results(tasks: Iterable[CheckTask]) -> list[ProbeResult]:
    return [task.result for task in tasks]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, SIGKILL)
    except ProcessLookupError:
        return
