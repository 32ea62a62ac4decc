"""Nodes that come and go: lost ones, those that leave, those that wait for a place, and those that are drained.

Rules:

1. A manager that hears too few of the world's nodes gives up none: it waits for more, and ends the job if none come.
2. A place is given to a node that waits; if none does the cluster is asked for one.
"""

from dataclasses import dataclass, field

from taskd.core.budget import EARLY_S
from taskd.core.inquest import Investigation
from taskd.core.phases import Note, Phase
from taskd.core.policy import Strategy
from taskd.wire.messages import Order


@dataclass(slots=True)
class Comings(Investigation):
    """A handler for each kind of event of a node. Its subject is the node's place."""

    held: set[int] = field(default_factory=set)
    """Lost nodes that nothing is done about yet, since too few others are heard."""
    _cut_off_s: float = 0.0
    """When too few were heard the last time. Whoever was cut off with them is given time to be heard again."""
    _alone_since_s: float | None = None
    drained_for: str = ""
    """Why a node is to be emptied, if it is not on an operator's word."""

    def lose_node(self, node_rank: int) -> None:
        """An agent is gone: every rank of its node is lost with it."""
        self._lose_node(node_rank, f"node {node_rank} is lost: its agent is not heard any more")

    def leave_node(self, node_rank: int) -> None:
        """torchrun has ended on a node: if its work was not done, the node is lost, and with the last one the job."""
        ranks = self.world.on_node(node_rank)
        if ranks and all(self.world.ranks[rank].exited for rank in ranks):
            return
        text = f"torchrun has ended on node {node_rank}"
        others = set(self.world.places) - self.world.dead_nodes - {node_rank}
        if self.phase is Phase.FORMING and self.world.nodes[node_rank].status.ledger.term > 0:
            self.world.dead_nodes.add(node_rank)  # of an earlier manager's job: the others go on
            return
        if self.phase is Phase.FORMING or not others:
            self._stop(text, 1)
            return
        self.world.dead_nodes.add(node_rank)
        self._lose_node(node_rank, text)

    def _lose_node(self, node_rank: int, text: str) -> None:
        ranks = self.world.on_node(node_rank)
        if self.phase is Phase.STOPPED or all(self.world.ranks[rank].exited for rank in ranks):
            return
        if not self.has_quorum():
            if node_rank not in self.held:
                self.held.add(node_rank)
                self._out.append(Note(f"{text}; too few nodes are heard to go on without it: waiting for more"))
            return
        self.held.discard(node_rank)
        causes = dict.fromkeys(ranks, text)
        if self.record is None:
            self._begin(causes)
        else:
            self.record.causes.update(causes)
            self._attempt(new_world=True)
        self.tell_lost_node(ranks, text)

    def hold(self) -> None:
        """Look again at nodes that too few others were heard to give up."""
        if self.phase in (Phase.STOPPED, Phase.FORMING):
            return
        self.held &= self.world.dead_nodes & set(self.world.places)
        if self._unknown:
            self.plan_world()
        waiting = self.held or self.world.vacant or (set(self.world.agreed) if self._unknown else ())
        if waiting and not self.has_quorum():
            self._cut_off_s = self._now_s
            self._alone_since_s = self._now_s if self._alone_since_s is None else self._alone_since_s
            if self._now_s - self._alone_since_s >= self.policy.wait_node_s:
                waited = f"for {self.policy.wait_node_s:g} s too few others are heard"
                self._stop(f"node {min(waiting)} is lost, and {waited}", 1)
            return
        self._alone_since_s = None
        for node_rank in sorted(self.held):
            if self._now_s - self._cut_off_s >= self.policy.membership.suspect_s:
                self.lose_node(node_rank)

    def welcome(self, _subject: int) -> None:
        """A node waits for a place, and one is vacant."""
        record = self._need_record()
        if self.held or not self.has_quorum():
            return
        if self._undecided:
            self._attempt(new_world=True)
        elif record.strategy is Strategy.RECOVER and self.fill():
            self._since_s = self._now_s
            self._order(Order.RUN if record.restart else Order.PAUSE)

    def grow(self, _subject: int) -> None:
        """A node waits for a place, and one is absent from the world: at full size again."""
        absent = sorted(set(range(self.policy.node_count)) - set(self.world.places))
        if not absent:
            return
        anew = not self.world.all_cooperate()
        if anew and (self._now_s - self.world.youngest_s() < EARLY_S or not self.has_quorum()):
            return  # they may be on their way into a resilient function; the node is heard again
        grown = []
        for place in absent:
            agent_id = self.world.candidate_for(place)
            if agent_id is not None:
                self.world.expect(place, self.policy.ranks_per_node, self._now_s)
                self.give(place, agent_id)
                grown.append(place)
        if grown:
            text = f"node {', '.join(map(str, grown))} has come (back)"
            self._rearrange(Strategy.ELASTIC_TRAINING, text, {}, restart=anew)

    def drain_refusal(self, node: str, place: int | None) -> str:
        """Why the node that was named, at this place, cannot be emptied; "" if it can."""
        if place is None:
            known = ", ".join(f"{p} ({view.status.host})" for p, view in sorted(self.world.nodes.items()))
            return f"found no node {node!r} in the job, expected one of {known}"
        if self.phase is not Phase.RUNNING:
            return f"the job is {self.phase.value}, expected it to train; try again when it does"
        if len(self.world.places) < 2:
            return "it is the only node, and its state can come from no other; start a second one first"
        if self.world.candidate_for(place) is None:
            return "no node waits for its place; start one more torchrun first"
        if self.world.situation(no_donor=False).uncooperative:
            return "the ranks are not inside a resilient function"
        return ""

    def drain(self, node_rank: int) -> None:
        """Move the ranks of a living node to one that waits: an operator wants it so, or the node is slow."""
        text, self.drained_for = self.drained_for or f"node {node_rank} is drained", ""
        self._rearrange(Strategy.RECOVER, text, dict.fromkeys(self.world.on_node(node_rank), text))
        self._drained = node_rank

    def _move_drained(self, place: int) -> None:
        """All ranks have come to the end of their step, those of the drained node among them: now they move."""
        self._drained = None
        agent_id = self.world.candidate_for(place)
        if agent_id is None:
            self._out.append(Note(f"node {place} is not drained: no node waits for its place any more"))
            self.plan_world()
            return
        self.world.excluded.add(self.world.holders[place])
        self.give(place, agent_id)
        self._need_record().replaced_s = None
        self._order(Order.PAUSE, reason=self._need_record().reason)
