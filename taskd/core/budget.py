"""Restarts: one count per job, and an end to faults that repeat without progress.

Rules:

1. One recovery costs one restart, whatever number of ranks it replaces and whichever node they are on.
2. A rank that fails at the same step with the same cause `repeats` times, with no later step committed between,
   is a bug in the code and not a fault of the machine: the job ends with that said, however large the budget is.
3. So is a process that ends by itself, within `EARLY_S` of its start, before any step was committed, `repeats` times.
   A script without the SDK commits nothing: for it, only the early failures count.
4. Nothing here is ever refilled. (A sliding window comes with the ladder of strategies.)
"""

from dataclasses import dataclass, field

DEFAULT_MAX_RESTARTS = 32767
EARLY_S = 60.0
EXIT_CODE = "exit code"
"""How the cause of a process begins that was ended by nobody but itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What the budget counts by: where it struck and how."""

    rank: int
    step: int
    cause: str
    early: bool = False
    """It ended by itself, soon after its start, before any rank had committed a step. Whose it was does not matter."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The answer to one fault. `reason` says why it was refused, or how much is left."""

    granted: bool
    reason: str


@dataclass(slots=True)
class Budget:
    """The job's restarts, counted by the manager."""

    max_restarts: int = DEFAULT_MAX_RESTARTS
    repeats: int = 3
    spent: int = 0
    _seen: dict[Fault, int] = field(default_factory=dict)

    def charge(self, faults: list[Fault]) -> Charge:
        """Spend one restart for these faults, or refuse."""
        for fault in dict.fromkeys(faults):
            self._seen[fault] = self._seen.get(fault, 0) + 1
            if fault.early and self._seen[fault] >= self.repeats:
                return Charge(
                    False,
                    f"the job failed {self._seen[fault]} times before any step was committed, within {EARLY_S:g} s of "
                    f"its start and with the same cause ({fault.cause}); that is a bug in the job, not in a machine",
                )
            if fault.step >= 0 and self._seen[fault] >= self.repeats:
                return Charge(
                    False,
                    f"rank {fault.rank} failed {self._seen[fault]} times at step {fault.step} with the same cause "
                    f"({fault.cause}); a fault that repeats without progress is a bug in the job, not in a machine",
                )
        if self.spent >= self.max_restarts:
            return Charge(False, f"all {self.max_restarts} restarts of the job are spent (--max_restarts)")
        self.spent += 1
        return Charge(True, f"restart {self.spent} of {self.max_restarts}")

    def progressed(self, step: int) -> None:
        """Every rank has committed `step`: faults at earlier steps no longer count as repetitions."""
        self._seen = {fault: times for fault, times in self._seen.items() if fault.step >= step}
