"""Facts by which a strategy is chosen: lost ranks, remaining ranks, and refusals of the processes themselves."""

from collections.abc import Collection, Mapping, Set
from dataclasses import replace

from taskd.core.diagnosis.faults import FaultKind
from taskd.core.recovery.rows import why_not_without
from taskd.core.recovery.strategy import KeepingRefusals, Situation
from taskd.core.recovery.world import World, replica_sets
from taskd.wire.kinds import JobRank, NodeRank


def blames_node(world: World) -> bool:
    """Return whether a process that has ended reported that its node is at fault."""
    known = [view.known for view in world.ranks.values() if view.gone]
    return any(status is not None and status.kind == FaultKind.NODE.value for status in known)


def refused(world: World) -> bool:
    """Return whether a process refuses the world that is being built, which it reported only now."""
    newcomers = any(view.joins for view in world.ranks.values())
    found = _refusals(world)
    return bool((newcomers and found.no_newcomer) or found.no_rebuild)


def _refusals(world: World) -> KeepingRefusals:
    """Return the reason of the first rank for each refusal.

    A process that has ended may refuse its own successor (`core.agent`).
    """
    known = [view.status for view in world.ranks.values() if view.status is not None]
    refusing = sorted((one.rank, one) for one in known if one.no_rebuild or one.no_newcomer)
    return KeepingRefusals(
        no_rebuild=next((f"rank {rank}: {one.no_rebuild}" for rank, one in refusing if one.no_rebuild), ""),
        no_newcomer=next((f"rank {rank}: {one.no_newcomer}" for rank, one in refusing if one.no_newcomer), ""),
    )


Sets = Mapping[JobRank, str | None]
"""Key of each rank's replica set; None where it is not known."""


def _lost_set(world: World, sets: Sets, gone: Set[NodeRank], left: str = "left", *, from_copies: bool = True) -> str:
    """Return why the state of some rank would be lost without the nodes of these places; "" if none would be.

    With `from_copies`, copies count too. Those of a rank may be on its node and on the next one, without their
    processes. Their presence is known when all ranks have paused. A checkpoint that a living rank knows of counts too.
    """
    if from_copies and _knows_checkpoint(world, gone):
        return ""
    survives: dict[str | None, bool] = {}
    after = dict(zip(world.places, (*world.places[1:], *world.places[:1]), strict=True))
    for rank, view in world.ranks.items():
        if not survives.get(sets[rank]):  # one survivor is enough, mostly the first rank
            copied = from_copies and view.replicas is not None and view.replicas.backs_up
            left_on = {view.node_rank}
            if copied and view.replicas is not None and view.replicas.elsewhere:
                left_on.add(after[view.node_rank])
            survives[sets[rank]] = not left_on <= gone and (copied or not view.empty)
    if not any(survives.values()):
        return f"no rank is {left} to give its state"
    lost = sorted(key for key, one in survives.items() if key is not None and not one)
    return f"no rank of replica set {lost[0]!r} is {left} to give its state" if lost else ""


def _uncopied(world: World, sets: Sets, gone: Set[NodeRank]) -> str:
    """Return why new processes for all ranks cannot load copies; "" if they may."""
    copied = {
        sets[rank]
        for rank, view in world.ranks.items()
        if view.replicas is not None and view.replicas.backs_up and view.node_rank not in gone
    }
    return "" if copied >= set(sets.values()) else "not all of the state is known to be copied"


def _knows_checkpoint(world: World, gone: Set[NodeRank]) -> bool:
    """Return whether a remaining rank knows of a checkpoint that the job has written."""
    views = world.ranks.values()
    return any(
        view.replicas is not None and view.replicas.saved and not view.empty and view.node_rank not in gone
        for view in views
    )


def lost_elsewhere(world: World, place: NodeRank) -> str:
    """Return why no rank on another node could give the ranks of a place their state; "" if the place could move."""
    return _lost_set(world, replica_sets(world), world.nodes.dead_nodes | {place}, "left on another node")


def _no_step(sets: Sets) -> str:
    """Return why no step can be resumed at, in words."""
    if len(set(sets.values())) == 1:
        return "no rank holds a consistent state"
    return "no step is held by a rank of every replica set"


def _unknown_set(world: World, sets: Sets, gone: Collection[NodeRank]) -> str:
    """Return why it is not known if the ranks elsewhere hold all of the state; "" if it is known.

    It is known if all ranks hold the same, or if the replica set of each rank that goes is known.
    """
    if set(sets.values()) <= {None, ""}:
        return ""
    unknown = [rank for rank, view in world.ranks.items() if view.replicas is None and view.node_rank in gone]
    return f"which replica set rank {min(unknown)} was of is not known" if unknown else ""


def _amiss(world: World, away: Collection[NodeRank]) -> tuple[list[JobRank], list[JobRank], list[JobRank]]:
    """Return the ranks that are lost, those that cannot be reached, and the others that do not cooperate."""
    unreachable = [rank for rank, view in world.ranks.items() if view.node_rank in away] if away else []
    idle = {rank: view for rank, view in world.ranks.items() if view.joins or not view.cooperative}
    lost = [rank for rank, view in idle.items() if view.joins or view.gone]
    return sorted(lost), sorted(unreachable), sorted(idle.keys() - {*lost, *unreachable})


def at_fault(world: World, lost: Collection[JobRank], unreachable: Collection[JobRank]) -> set[NodeRank]:
    """Return the places of these ranks at which a node is at fault.

    The place of a lost rank does not count if a node was given it because of that loss, and nothing has failed since.
    """
    views = [world.ranks[rank] for rank in lost]
    failed = {view.node_rank for view in views if view.gone or not view.moved}
    return failed | {world.ranks[rank].node_rank for rank in unreachable}


def situation(world: World, *, no_donor: bool, renewal_tried: bool = False) -> Situation:
    """Return the facts by which a strategy is chosen.

    `renewal_tried`: all ranks have had new processes for this fault already.
    """
    sets = replica_sets(world)
    away = world.nodes.dead_nodes | {place for place, node in world.nodes.by_place.items() if node.status.leaving}
    lost, unreachable, uncooperative = _amiss(world, away)
    failing = at_fault(world, lost, unreachable)
    return Situation(
        lost=tuple(lost),
        unreachable=tuple(unreachable),
        uncooperative=tuple(uncooperative),
        refusals=replace(
            _refusals(world),
            no_survivor=_lost_set(world, sets, away),
            no_survivor_elsewhere=_lost_set(world, sets, failing, "left on another node"),
            no_shrinking=_lost_set(world, sets, away, from_copies=False) or _unknown_set(world, sets, failing),
            no_shrinking_elsewhere=_lost_set(world, sets, failing, "left on another node", from_copies=False),
            broken_rows=why_not_without(world, sets, away),
            broken_rows_elsewhere=why_not_without(world, sets, failing),
            no_donor=_no_step(sets) if no_donor else "",
            no_renewal="it has been tried for this fault" if renewal_tried else _uncopied(world, sets, away),
        ),
        places=len(world.places),
        failing=len(failing),
        cut_off=len({world.ranks[rank].node_rank for rank in unreachable}),
        candidates=len(world.nodes.usable()),
        least=world.nodes.least,
    )
