"""Which recovery strategy next: allowed by the job, feasible now, not yet failed for this fault.

Rules:

1. The order is fixed (`Strategy`), whatever the order of the words in the job's annotation.
2. Every strategy that is passed over leaves its reason; the decision carries them all.
3. `exit` is always feasible, and is the end of every list, allowed or not.
"""

from collections.abc import Collection
from dataclasses import dataclass

from taskd.core.policy import Strategy


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a fault when a strategy is chosen."""

    lost: tuple[int, ...]
    """Ranks without a process."""
    unreachable: tuple[int, ...] = ()
    """Ranks whose node has no living agent."""
    uncooperative: tuple[int, ...] = ()
    """Living ranks that are not inside a resilient function and cannot be paused."""
    no_survivor: bool = False
    """Every rank has lost its process."""
    no_donor: bool = False
    """Every rank is paused and none holds a consistent state."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A strategy, whether all processes start anew (`restart`), and why."""

    strategy: Strategy
    restart: bool
    reason: str


def choose(situation: Situation, allowed: Collection[Strategy], failed: Collection[tuple[Strategy, bool]]) -> Decision:
    """The next thing to try. `failed` holds (strategy, restart) pairs that were tried for this fault in vain."""
    passed: list[str] = []
    for strategy, restart in _LADDER:
        refusal = _refusal(strategy, restart, situation, allowed, failed)
        if refusal is None:
            return Decision(strategy, restart, "; ".join([_praise(strategy, restart, situation), *passed]))
        passed.append(f"not {_name(strategy, restart)}: {refusal}")
    return Decision(Strategy.EXIT, False, "; ".join(passed))


_LADDER = (
    (Strategy.RETRY, False),
    (Strategy.RECOVER_IN_PLACE, False),
    (Strategy.RECOVER_IN_PLACE, True),
)


def _refusal(
    strategy: Strategy,
    restart: bool,
    situation: Situation,
    allowed: Collection[Strategy],
    failed: Collection[tuple[Strategy, bool]],
) -> str | None:
    if strategy not in allowed:
        return "the job does not allow it"
    if (strategy, restart) in failed:
        return "it has failed for this fault"
    if situation.unreachable:
        return f"no agent on the node of rank {_ranks(situation.unreachable)}"
    if strategy is Strategy.RETRY and situation.lost:
        return f"rank {_ranks(situation.lost)} has no process"
    return None if restart else _keeping_refusal(situation, failed)


def _keeping_refusal(situation: Situation, failed: Collection[tuple[Strategy, bool]]) -> str | None:
    """Why the processes that live cannot be kept."""
    if not situation.lost and (Strategy.RETRY, False) in failed:
        return "no process is lost, and to rebuild the groups has failed"
    if situation.uncooperative:
        return f"rank {_ranks(situation.uncooperative)} is not inside a resilient function"
    if situation.no_survivor:
        return "no rank is left to give its state"
    if situation.no_donor:
        return "no rank holds a consistent state"
    return None


def _praise(strategy: Strategy, restart: bool, situation: Situation) -> str:
    if strategy is Strategy.RETRY:
        return "every process lives: the groups are rebuilt and the step is redone"
    if restart:
        return "all processes start anew, warm where a standby waits"
    if not situation.lost:
        return "every process lives and stays: the groups are rebuilt"
    return f"rank {_ranks(situation.lost)} gets a new process on its node, all others stay"


def _name(strategy: Strategy, restart: bool) -> str:
    return f"{strategy.value} of all processes" if restart else strategy.value


def _ranks(ranks: Collection[int]) -> str:
    return ", ".join(str(r) for r in ranks)
