"""Reports on a node, from its agent to the manager."""

import os
import socket
from typing import NamedTuple

from taskd.core.agent import Node
from taskd.core.membership.heartbeats import can_wait
from taskd.core.membership.shorthand import Shorthand
from taskd.core.rendezvous import NOWHERE
from taskd.runtime.agent.ports import NodeIdentity
from taskd.runtime.links.identity import new_proof
from taskd.wire.checks import CheckState
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus, Progress, RankSpan, RankStatus

HOST = socket.gethostname()
CORES = len(os.sched_getaffinity(0))


class Urgent(NamedTuple):
    """Part of a report whose changes are sent at once. All other changes go with the next heartbeat."""

    ranks: tuple[RankStatus, ...]
    standbys: int
    generation: int
    leaving: bool
    knows: bool
    """True if the present manager wrote the ledger of the directive that the node obeys."""
    check: CheckState | None

    def is_pressing(self, known: "Urgent | None") -> bool:
        """Return whether the manager waits for the change from `known`, the last report to it."""
        if known is None or self._replace(ranks=()) != known._replace(ranks=()):
            return True
        return not can_wait(known.ranks, self.ranks)


class Reports:
    """Source of one node's reports, one after the other."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.proof = new_proof()
        self._sequence = 0
        self.store = NOWHERE
        """Address of the node's store."""
        self.wants = NodeRank(-1)
        """Place that the launcher intends for the node."""
        self.least = 0
        """MIN of torchrun's `--nnodes=MIN:MAX`; 0 if it names one number."""
        self.shorthand = Shorthand()
        self.deserted = False
        """True if the agent has ended by an error."""

    def compose(
        self,
        node: Node,
        identity: NodeIdentity | None,
        *,
        urgent: Urgent,
        seen: tuple[Progress | None, tuple[RankSpan, ...]],
        sent_s: float,
    ) -> NodeStatus:
        """Return the next report.

        Without an identity torchrun has not started its processes yet, and the node holds no place.
        """
        self._sequence += 1
        place = None if identity is None else node.place
        return NodeStatus(
            job_id=self._job_id,
            node_rank=NodeRank(-1) if place is None else place,
            agent_id=node.agent_id,
            proof=self.proof,
            sequence=self._sequence,
            node_count=identity.node_count if identity is not None else 0,
            ranks=urgent.ranks,
            store_host=self.store.host,
            store_port=self.store.port,
            store_key=self.store.key,
            standbys=urgent.standbys,
            max_restarts=identity.max_restarts if identity is not None else 0,
            generation=urgent.generation,
            sent_s=sent_s,
            leaving=urgent.leaving,
            deserted=self.deserted,
            host=HOST,
            cores=CORES,
            wants=self.wants,
            min_nodes=identity.min_nodes if identity is not None else self.least,
            ledger=self.shorthand.ledger(node.directive),
            heard=self.shorthand.heard,
            progress=seen[0],
            spans=seen[1],
            check=urgent.check,
        )
