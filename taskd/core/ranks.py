"""Who gives state to whom, so that every rank of the next generation holds one and the same step.

Rules:

1. The target is the newest committed step of a clean replica: a committed step is never given up while one lives.
2. If no replica is clean, but some have stepped exactly once since their commit, that step counts as done (`adopt`).
3. A rank that is clean at the target keeps its own state. Every other one receives, from one donor.
4. Without a donor there is no plan: the state is lost in memory and only a checkpoint can bring it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.wire.messages import Condition, Transfer


@dataclass(frozen=True, slots=True)
class Held:
    """What one paused rank holds."""

    step: int
    condition: Condition


@dataclass(frozen=True, slots=True)
class Restore:
    """The step to resume at, and the transfers that bring every rank there."""

    target_step: int
    adopt: bool
    transfers: tuple[Transfer, ...]


def plan_restore(held: Mapping[int, Held]) -> Restore | None:
    """Choose the target step and the donor among the paused ranks; None if no rank can give a consistent state."""
    for condition, adopt in ((Condition.CLEAN, False), (Condition.STEPPED, True)):
        steps = [h.step for h in held.values() if h.condition is condition]
        if steps:
            return _towards(max(steps), condition, adopt, held)
    return None


def _towards(step: int, condition: Condition, adopt: bool, held: Mapping[int, Held]) -> Restore:
    holders = sorted(r for r, h in held.items() if h.condition is condition and h.step == step)
    receivers = tuple(sorted(set(held) - set(holders)))
    transfers = (Transfer(donor=holders[0], receivers=receivers),) if receivers else ()
    return Restore(step + adopt, adopt, transfers)
