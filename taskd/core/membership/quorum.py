"""Quorum: whether enough nodes report to decide about the others."""

from collections.abc import Collection, Mapping

from taskd.core.membership.health import quorum
from taskd.core.membership.places import Nodes
from taskd.core.policy import Membership
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus


def has_quorum(nodes: Nodes, places: Collection[NodeRank], now_s: float, policy: Membership) -> bool:
    """Return whether enough nodes of the present world, and of the last one, report to decide about the others.

    `places`: those of the present world. A vacated place does not count: that was decided when enough nodes reported.
    The last world may still be the one that trains, as far as the other nodes know.
    """
    present = {place: nodes.holders.get(place, "") for place in places if place not in nodes.vacated}
    heard = _heard(nodes, now_s, policy)
    return _has_most(nodes, present, heard) and _has_most(nodes, nodes.agreed, heard)


def is_known(nodes: Nodes, term: int, generation: int, now_s: float, policy: Membership) -> bool:
    """Return whether enough nodes of the last world know the world `generation` of manager `term`.

    No other manager can then form another world without learning of this one: it needs as many of the same nodes. (Two
    majorities of one set have a member in common; see the joint consensus of Raft, section 6 of its paper.)
    """
    return _has_most(nodes, nodes.agreed, echoes(nodes, term, generation, now_s, policy))


def echoes(nodes: Nodes, term: int, generation: int, now_s: float, policy: Membership) -> list[NodeStatus]:
    """Return the reporting nodes that know the world `generation` of manager `term`."""
    return [
        status
        for status in _heard(nodes, now_s, policy)
        if status.ledger.term == term and status.generation >= generation
    ]


def _has_most(nodes: Nodes, members: Mapping[NodeRank, str], heard: Collection[NodeStatus]) -> bool:
    """Return whether enough of `members`, by place, have reported.

    A node that has announced that it leaves cannot go on under another manager, so it does not count.
    """
    views = nodes.views()
    left = {view.status.agent_id for view in views if view.status.leaving}
    members = {place: agent_id for place, agent_id in members.items() if agent_id not in left}
    names = {status.agent_id for status in heard}
    present = {place for place, agent_id in members.items() if agent_id in names}
    replaced = _replaced(nodes, {place: members[place] for place in members.keys() - present}, names)
    first_heard = not members or min(members) in present
    return quorum(len(members), len(present), len(replaced), first_heard=first_heard)


def _replaced(nodes: Nodes, missing: Mapping[NodeRank, str], heard: Collection[str]) -> set[NodeRank]:
    """Return the places for which a launcher has started another node since the last report of the missing agent.

    A node that this manager has requested itself proves nothing. A node that has waited as a spare does not either.
    """
    if not missing:
        return set()
    last_s: dict[str, float] = {}
    new_s: dict[NodeRank, float] = {}
    for view in nodes.views():
        status = view.status
        last_s[status.agent_id] = max(view.heard_s, last_s.get(status.agent_id, 0.0))
        if status.agent_id in heard and view.new_since_s is not None:
            new_s[status.wants] = max(view.new_since_s, new_s.get(status.wants, 0.0))
    return {
        place
        for place, agent_id in missing.items()
        if place not in nodes.wanted and new_s.get(place, 0.0) > last_s.get(agent_id, 0.0)
    }


def _heard(nodes: Nodes, now_s: float, policy: Membership) -> list[NodeStatus]:
    """Return the nodes that have reported since any node that is suspected by now fell silent."""
    dead = {nodes.holders.get(place) for place in nodes.dead_nodes}
    since_s = now_s - (policy.suspect_s - policy.heartbeat_s)
    views = [view for view in nodes.views() if view.heard_s > since_s]
    return [view.status for view in views if view.status.agent_id not in dead and not view.status.leaving]
