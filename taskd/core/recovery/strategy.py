"""Choice of the next recovery strategy: allowed by the job, feasible now, not yet failed for this fault.

Rules:

1. The order is fixed (`Strategy`), whatever the order of the words in the job's annotation.
2. Every strategy that is passed over leaves its reason. The decision carries them all.
3. Before all processes restart, all ranks get new processes that load copies, if copies are known.
4. `exit` is always feasible. It is the end of every list, allowed or not.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from taskd.core.policy import Strategy, StrategyPolicy
from taskd.wire.kinds import JobRank


@dataclass(frozen=True, slots=True)
class KeepingRefusals:
    """Reasons why processes cannot be kept, as sentences; "" where there is none."""

    no_survivor: str = ""
    """Why no rank is left to give another its state: every rank of a replica set has lost its process."""
    no_survivor_elsewhere: str = ""
    """The same, if all ranks of the nodes that have lost something are given up too."""
    no_shrinking: str = ""
    """Why the remaining ranks do not hold all of the state, or why that cannot be known."""
    no_shrinking_elsewhere: str = ""
    """The same, if all ranks of the nodes that have lost something are given up too."""
    broken_rows: str = ""
    """Why the ranks that remain without the lost nodes are no whole replicas of a state on a mesh."""
    broken_rows_elsewhere: str = ""
    """The same, if all ranks of the nodes that have lost something are given up too."""
    no_donor: str = ""
    """Why no step can be resumed at, although every rank is paused."""
    no_rebuild: str = ""
    """Why a living process reports that no world can be rebuilt with it."""
    no_newcomer: str = ""
    """Why a process reports that no new process can join its world."""
    no_renewal: str = "no copies of the state are known"
    """Why new processes for all ranks cannot go on from copies of the state."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts that are known of a fault when a strategy is chosen."""

    lost: tuple[JobRank, ...]
    """Ranks without a process, or with one that has no state yet."""
    unreachable: tuple[JobRank, ...] = ()
    """Ranks whose node has no living agent."""
    uncooperative: tuple[JobRank, ...] = ()
    """Living ranks that are not inside a resilient function and cannot be paused."""
    refusals: KeepingRefusals = KeepingRefusals()
    places: int = 1
    """Number of nodes in the present world."""
    failing: int = 0
    """Number of these nodes that have lost something."""
    cut_off: int = 0
    """Number of these nodes without a living agent."""
    candidates: int = 0
    """Number of nodes that wait for a place."""
    least: int = 0
    """Fewest nodes that torchrun needs (`--nnodes=MIN:MAX`)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Strategy, restart of all processes (`restart`), and the reason for both.

    `renews`: all ranks get new processes, which load copies of the state.
    """

    strategy: Strategy
    restart: bool
    reason: str
    renews: bool = False


Tried = Mapping[tuple[Strategy, bool], str]
"""Strategies that have failed for a fault, by strategy and `restart`, with their reasons."""


def choose(situation: Situation, policy: StrategyPolicy, failed: Tried) -> Decision:
    """Choose the strategy to try next."""
    passed: list[str] = []
    refused: dict[Strategy, str] = {}
    renewal_refused = ""
    for strategy, restart in _LADDER:
        if restart and not renewal_refused:
            renewal_refused = _renewal_refusal(situation, policy, failed)
            if not renewal_refused:
                why = refused.get(Strategy.RECOVER_IN_PLACE) or ""
                text = f"all ranks get new processes, which go on from copies of the state: {why}"
                return Decision(Strategy.RECOVER_IN_PLACE, False, text, renews=True)
        refusal = _refusal(strategy, restart, situation, policy, failed)
        if refusal is None:
            return Decision(strategy, restart, "; ".join([_praise(strategy, restart, situation), *passed]))
        if refused.get(strategy) != refusal:  # each reason once
            passed.append(f"not {strategy_name(strategy, restart)}: {refusal}")
        refused[strategy] = refusal
    return Decision(Strategy.EXIT, False, "; ".join(passed))


def is_sized(least: int, policy: StrategyPolicy) -> bool:
    """Return whether torchrun's MIN:MAX allows elastic training that the job's own words do not name.

    `least` is MIN, 0 without one.
    """
    return policy.sized_wait_s is not None and least > 0


_REPLACING = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER)
_LADDER = (
    (Strategy.RETRY, False),
    (Strategy.RECOVER_IN_PLACE, False),
    (Strategy.RECOVER, False),
    (Strategy.RECOVER_IN_PLACE, True),
    (Strategy.RECOVER, True),
    (Strategy.ELASTIC_TRAINING, False),
    (Strategy.ELASTIC_TRAINING, True),
    (Strategy.DUMP, False),
)


KEEPING = tuple(rung for rung in _LADDER if rung[0] in _REPLACING and not rung[1])
"""Strategies that keep the living processes and give up no part of the job."""


def _refusal(
    strategy: Strategy,
    restart: bool,
    situation: Situation,
    policy: StrategyPolicy,
    failed: Tried,
) -> str | None:
    elastic = strategy is Strategy.ELASTIC_TRAINING
    if strategy not in policy.allowed and not (elastic and is_sized(situation.least, policy)):
        return "the job does not allow it"
    if restart and not policy.restart_all:
        return "who started the processes is to start them anew"
    if (strategy, restart) in failed:
        return failed[strategy, restart]
    if elastic:
        own = _elastic(situation, policy, stay=may_stay(policy, failed, restart=restart))
    else:
        own = _OWN[strategy](situation, policy)
    return own if restart else own or _keeping_refusal(strategy, situation, policy, failed)


def _renewal_refusal(situation: Situation, policy: StrategyPolicy, failed: Tried) -> str:
    """Return why new processes that load copies are not possible for all ranks; "" if they are."""
    refusals = situation.refusals
    if Strategy.RECOVER_IN_PLACE not in policy.allowed or not policy.restart_all:
        return "the job does not allow it"
    if (Strategy.RECOVER_IN_PLACE, False) in failed:
        return "what keeps the state has failed"
    known = refusals.no_rebuild or refusals.no_newcomer or refusals.no_donor or refusals.no_renewal
    return known or _unreachable(situation) or ""


def _unreachable(situation: Situation) -> str | None:
    return f"no agent on the node of {_ranks(situation.unreachable)}" if situation.unreachable else None


def _retry(situation: Situation, _policy: StrategyPolicy) -> str | None:
    if situation.lost:
        return f"{_ranks(situation.lost)} {'have' if len(situation.lost) > 1 else 'has'} no process"
    return _unreachable(situation)


def _in_place(situation: Situation, _policy: StrategyPolicy) -> str | None:
    return _unreachable(situation)


def _recover(situation: Situation, _policy: StrategyPolicy) -> str | None:
    if situation.unreachable:
        return None  # the cluster may give a node, which is waited for
    if not situation.lost:
        return "no node is at fault"
    if situation.candidates < situation.failing:
        return f"{situation.failing} nodes are at fault, {situation.candidates} wait for a place"
    return None


def may_stay(policy: StrategyPolicy, failed: Tried, *, restart: bool) -> bool:
    """Return whether lost ranks of a living node get new processes there, while another node is given up."""
    in_place = Strategy.RECOVER_IN_PLACE
    return in_place in policy.allowed and (in_place, restart) not in failed


def _elastic(situation: Situation, policy: StrategyPolicy, *, stay: bool) -> str | None:
    left = situation.places - (situation.cut_off if situation.cut_off and stay else situation.failing)
    if not situation.failing:
        return "no node is at fault"
    needed = max(policy.min_nodes, situation.least)
    if left < needed:
        return f"{left} nodes would be left, the job needs {needed}"
    return None


def _dump(_situation: Situation, policy: StrategyPolicy) -> str | None:
    return None if policy.dump_to else "there is no directory for it (TASKD_CHECKPOINT_DIR)"


_OWN: dict[Strategy, Callable[[Situation, StrategyPolicy], str | None]] = {
    Strategy.RETRY: _retry,
    Strategy.RECOVER_IN_PLACE: _in_place,
    Strategy.RECOVER: _recover,
    Strategy.DUMP: _dump,
}


def _keeping_refusal(strategy: Strategy, situation: Situation, policy: StrategyPolicy, failed: Tried) -> str | None:
    """Return why the living processes cannot be kept; None if they can."""
    nothing_lost = not situation.lost and not situation.unreachable
    if nothing_lost and (Strategy.RETRY, False) in failed:
        return "no process is lost, and to rebuild the groups has failed"
    if situation.uncooperative:
        verb = "are" if len(situation.uncooperative) > 1 else "is"
        return f"{_ranks(situation.uncooperative)} {verb} not inside a resilient function"
    if situation.refusals.no_rebuild:
        return situation.refusals.no_rebuild
    shrinks = strategy is Strategy.DUMP or (strategy is Strategy.ELASTIC_TRAINING and not situation.cut_off)
    if situation.refusals.no_newcomer and not nothing_lost and not shrinks:
        return situation.refusals.no_newcomer
    return _state_refusal(strategy, situation, policy, failed)


def _state_refusal(strategy: Strategy, situation: Situation, policy: StrategyPolicy, failed: Tried) -> str | None:
    """Return why the ranks that would remain do not hold all of the state; None if they do."""
    leaves = strategy in (Strategy.RECOVER, Strategy.ELASTIC_TRAINING)
    stays = bool(situation.unreachable) and may_stay(policy, failed, restart=False)
    if situation.refusals.no_survivor:
        return situation.refusals.no_survivor
    if leaves and not stays and situation.refusals.no_survivor_elsewhere:
        return situation.refusals.no_survivor_elsewhere
    if strategy in (Strategy.ELASTIC_TRAINING, Strategy.DUMP) and situation.refusals.no_shrinking:
        return situation.refusals.no_shrinking
    if strategy is Strategy.ELASTIC_TRAINING and not stays and situation.refusals.no_shrinking_elsewhere:
        return situation.refusals.no_shrinking_elsewhere
    if strategy is Strategy.ELASTIC_TRAINING:
        refusals = situation.refusals
        broken = refusals.broken_rows if stays else refusals.broken_rows_elsewhere
        return broken or refusals.no_donor or None
    return situation.refusals.no_donor or None


def _praise(strategy: Strategy, restart: bool, situation: Situation) -> str:
    gone = sorted({*situation.lost, *situation.unreachable})
    match strategy:
        case Strategy.RETRY:
            return "every process lives: the groups are rebuilt and the step is redone"
        case Strategy.RECOVER:
            others = "all processes start anew" if restart else "all others stay"
            return f"{_ranks(gone)} {'move' if len(gone) > 1 else 'moves'} to another node, {others}"
        case Strategy.ELASTIC_TRAINING:
            others = "all processes start anew" if restart else "training goes on"
            return f"{others} without the nodes of {_ranks(gone)}"
        case Strategy.DUMP:
            return "what is left writes a checkpoint, and the job ends"
        case _ if restart:
            return "all processes start anew, warm where a standby waits"
        case _ if not situation.lost:
            return "every process lives and stays: the groups are rebuilt"
        case _:
            if len(situation.lost) > 1:
                return f"{_ranks(situation.lost)} get new processes on their nodes, all others stay"
            return f"{_ranks(situation.lost)} gets a new process on its node, all others stay"


def strategy_name(strategy: Strategy, restart: bool) -> str:
    """Return the name of a strategy, with a suffix if all processes restart."""
    return f"{strategy.value} of all processes" if restart else strategy.value


def _ranks(ranks: Collection[JobRank]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(str(r) for r in ranks)}"
