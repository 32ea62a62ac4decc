"""Restarts: one count per job, and an end to faults that repeat without progress.

Rules:

1. One recovery costs one restart, whatever number of ranks it replaces and whichever node they are on.
2. For a rank that fails at the same step with the same cause `repeats` times, with no later step committed between, all
   processes start anew. If it fails so `repeats` times more after such starts, it is a bug in the code and not a fault
   of the machine: the job ends with that said, however large the budget is. An error of the script (`raised`) ends it
   the first time: the same exception at the same line and step, of any rank, after a start of fresh processes. An
   error that comes again after all ranks have loaded copies in new processes has all start anew, without copies.
3. So is a start that fails: `repeats` processes that ended by themselves, within `EARLY_S` of their start, before any
   step was committed. Of one start they all count if they say exactly the same: a typo strikes every rank, and ends a
   job of three ranks at once, while one flaky rank is started again. A script without the SDK commits nothing: for it,
   only the early failures count. Where `--max_restarts` names a number, starts may fail as often as that allows, as
   under torchrun: what all ranks miss (a mount, a server) may come.
4. Which causes are the same, `causes.py` says.
5. With a window, a restart counts until it is `window_s` old. Without one nothing is ever refilled.
6. A new manager goes on with the count of the former one. The times are not known to it: what it takes over counts
   as spent when it took over, so that losing the manager never gives restarts back.
"""

from dataclasses import dataclass, field, replace

from taskd.core.recovery.causes import Cause
from taskd.wire.kinds import JobRank

DEFAULT_MAX_RESTARTS = 32767
EARLY_S = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What the budget counts by: where it struck and how."""

    rank: JobRank
    step: int
    cause: Cause
    early: bool = False
    """It ended by itself, soon after its start, before any rank had committed a step. Whose it was does not matter."""
    raised: bool = False
    """By an error of which nobody says that it may pass."""

    @property
    def key(self) -> "Fault":
        """By what it is the same as another: the script's own error may strike any rank."""
        return replace(self, rank=JobRank(-1)) if self.raised else self


@dataclass(frozen=True, slots=True)
class Charge:
    """The answer to one fault. `reason` says why it was refused, or how much is left."""

    granted: bool
    reason: str
    anew: str = ""
    """Why all processes are to start anew, if they are: what keeps some of them has not helped."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """How often a fault has struck without progress, and how often of these after a start of all processes."""

    times: int = 0
    anew: int = 0


@dataclass(slots=True)
class Budget:
    """The job's restarts, counted by the manager. `spent` are those that counted at the last charge."""

    max_restarts: int = DEFAULT_MAX_RESTARTS
    repeats: int = 3
    window_s: float | None = None
    """Only restarts of so many last seconds count; None counts all."""
    spent: int = 0
    since_s: float = 0.0
    """When a former manager's `spent` was taken over."""
    _seen: dict[Fault, _Tally] = field(default_factory=dict)
    _met: set[Fault] = field(default_factory=set)
    """Faults that struck before all processes last started anew."""
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
        """Whether any fault may still be repeated: if none, progress changes nothing."""
        return bool(self._seen)

    def progressed(self, step: int) -> None:
        """Every rank has committed `step`: faults at earlier steps no longer count as repetitions."""
        self._seen = {fault: tally for fault, tally in self._seen.items() if fault.step >= step}
        self._met &= self._seen.keys()
        self._renewed &= self._seen.keys()

    def restarted(self) -> None:
        """All processes have started anew."""
        self._met = set(self._seen)

    def renewed(self) -> None:
        """Record that all ranks have new processes from copies."""
        self._renewed = set(self._seen)

    def _repeated(self, faults: list[Fault]) -> tuple[str, str]:
        """Count the faults. Why one of them is a bug in the job, and why all processes are to start anew; or ""."""
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
