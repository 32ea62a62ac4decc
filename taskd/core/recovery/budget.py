"""Restart budget: one count per job, and an end to faults that repeat without progress.

Rules:

1. One recovery costs one restart, no matter how many ranks it replaces and on which nodes they are.
2. A fault repeats if a rank fails at the same step with the same cause, and no later step was committed in between.
   After `repeats` times, all processes restart. After `repeats` times more following such restarts, the fault is a bug
   in the code, not in the machine. The job then ends with that reason, however large the budget is.
   An error of the script (`raised`) ends the job the first time it repeats in restarted processes. It must be the same
   exception at the same line and step, of any rank. If it repeats after all ranks have loaded copies in new
   processes, all processes restart without copies.
3. Failed starts are a bug too: `repeats` processes that ended by themselves, within `EARLY_S` of their start, before
   any step was committed. Processes of one start all count if they report exactly the same error. So a typo, which
   strikes every rank, ends a job of three ranks at once, while one flaky rank is started again.
   A script without the SDK commits nothing, so only its early failures count. If `--max_restarts` names a number,
   starts may fail as often as that allows, as under torchrun. A mount or a server that all ranks miss may still come.
4. `causes.py` defines which causes are the same.
5. With a window, a restart counts until it is `window_s` old. Without one, no restart is ever given back.
6. A new manager continues the count of the former one. It does not know the times of those restarts, so they count as
   spent at the takeover. The loss of a manager therefore never gives restarts back.
"""

from dataclasses import dataclass, field, replace

from taskd.core.recovery.causes import Cause
from taskd.wire.kinds import JobRank

DEFAULT_MAX_RESTARTS = 32767
EARLY_S = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault as the budget counts it: where it struck and how."""

    rank: JobRank
    step: int
    cause: Cause
    early: bool = False
    """The process ended by itself, soon after its start, before any step was committed. Its rank does not matter."""
    raised: bool = False
    """The fault is an error that is not known to be temporary."""

    @property
    def key(self) -> "Fault":
        """Identity of the fault for counting. The script's own error may strike any rank, so the rank is left out."""
        return replace(self, rank=JobRank(-1)) if self.raised else self


@dataclass(frozen=True, slots=True)
class Charge:
    """Answer to one request for a restart. `reason`: why it was refused, or how much is left."""

    granted: bool
    reason: str
    anew: str = ""
    """Why all processes must restart, because keeping some of them has not helped; "" if they need not."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """Number of times that a fault struck without progress, and number of these after a restart of all processes."""

    times: int = 0
    anew: int = 0


@dataclass(slots=True)
class Budget:
    """Restarts of the job, counted by the manager. `spent`: restarts that counted at the last charge."""

    max_restarts: int = DEFAULT_MAX_RESTARTS
    repeats: int = 3
    window_s: float | None = None
    """Age up to which restarts count, in seconds; None counts all."""
    spent: int = 0
    since_s: float = 0.0
    """Time at which the `spent` of a former manager was taken over."""
    _seen: dict[Fault, _Tally] = field(default_factory=dict)
    _met: set[Fault] = field(default_factory=set)
    """Faults that struck before the last restart of all processes."""
    _renewed: set[Fault] = field(default_factory=set)
    """Faults that struck before all ranks last got new processes from copies."""
    _times_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._times_s = [self.since_s] * self.spent

    def charge(self, faults: list[Fault], *, now_s: float = 0.0) -> Charge:
        """Spend one restart for these faults at time `now_s`, or refuse."""
        bug, anew = self._repeated(faults)
        if bug:
            return Charge(False, bug)
        self._forget(now_s)
        if self.spent >= self.max_restarts:
            return Charge(False, self._exhausted())
        self._times_s.append(now_s)
        self.spent += 1
        window = "" if self.window_s is None else f" in {self.window_s:g} s"
        return Charge(True, f"restart {self.spent} of {self.max_restarts}{window}", anew)

    @property
    def remembers(self) -> bool:
        """True if any recorded fault may still repeat. If none may, progress changes nothing."""
        return bool(self._seen)

    def progressed(self, step: int) -> None:
        """Forget faults at earlier steps: every rank has committed `step`, so they no longer count as repetitions."""
        self._seen = {fault: tally for fault, tally in self._seen.items() if fault.step >= step}
        self._met &= self._seen.keys()
        self._renewed &= self._seen.keys()

    def restarted(self) -> None:
        """Record that all processes have restarted."""
        self._met = set(self._seen)

    def renewed(self) -> None:
        """Record that all ranks have new processes from copies."""
        self._renewed = set(self._seen)

    def _repeated(self, faults: list[Fault]) -> tuple[str, str]:
        """Count the faults, and return two reasons: for the end of the job, and for a restart of all processes.

        The first explains why one of the faults is a bug in the job. Each reason is "" if it does not apply.
        """
        anew = ""
        different: dict[Fault, Fault] = {}
        for fault in faults:
            different.setdefault(fault.key, fault)
        alike = len({fault.cause.exact for fault in faults}) == 1
        for key, fault in different.items():
            common = fault.early and fault.raised and len(different) == 1 and alike
            known = self._seen.get(key, _Tally())
            tally = _Tally(known.times + (len(faults) if common else 1), known.anew + (key in self._met))
            self._seen[key] = tally
            times = f"{tally.times} times at step {fault.step} with the same cause ({fault.cause.text})"
            if fault.early and tally.times >= self.repeats and self.max_restarts >= DEFAULT_MAX_RESTARTS:
                return (
                    f"{tally.times} processes failed before any step was committed, within {EARLY_S:g} s of their "
                    f"start and with the same cause ({fault.cause.text}); that is a bug in the job or "
                    "its files, not in a machine"
                ), ""
            if fault.early or fault.step < 0:
                continue
            if fault.raised and tally.anew:
                return (
                    f"rank {fault.rank} failed at step {fault.step} as a rank did before all processes started anew, "
                    f"with the same error ({fault.cause.text}); what fresh processes repeat at the same line and step "
                    "is a bug in the job or its data, not in a machine. Mend it, then start the job again"
                ), ""
            if tally.anew >= self.repeats:
                return (
                    f"rank {fault.rank} failed {times}, {tally.anew} of them after all processes had started anew; a "
                    "fault that repeats without progress is a bug in the job, not in a machine"
                ), ""
            if tally.anew or tally.times >= self.repeats or (fault.raised and key in self._renewed):
                anew = f"rank {fault.rank} has failed {times}, without progress"
        return "", anew

    def _forget(self, now_s: float) -> None:
        if self.window_s is not None:
            self._times_s = [time_s for time_s in self._times_s if now_s - time_s < self.window_s]
            self.spent = len(self._times_s)

    def _exhausted(self) -> str:
        if self.window_s is None:
            return f"all {self.max_restarts} restarts of the job are spent (--max_restarts)"
        return (
            f"all {self.max_restarts} restarts of the last {self.window_s:g} s are spent "
            "(--max_restarts, TASKD_RESTART_WINDOW)"
        )
