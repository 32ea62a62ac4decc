"""What an agent tells the manager of its node."""

import socket

from taskd.core.agent import Node
from taskd.runtime.ports import NodeIdentity
from taskd.wire.messages import Ledger, NodeStatus

HOST = socket.gethostname()


def status_of(  # noqa: PLR0913  # one for each field that only the agent knows
    node: Node,
    identity: NodeIdentity | None,
    *,
    job_id: str,
    sequence: int,
    store: tuple[str, int],
    standbys: int,
    generation: int,
    leaving: bool,
    sent_s: float,
    wants: int,
) -> NodeStatus:
    """The report of one node; without an identity torchrun has not started its processes yet, and it holds no place."""
    place = None if identity is None else node.place
    return NodeStatus(
        job_id=job_id,
        node_rank=-1 if place is None else place,
        agent_id=node.agent_id,
        sequence=sequence,
        node_count=identity.node_count if identity is not None else 0,
        ranks=tuple(slot.status for slot in node.slots.values()),
        store_host=store[0],
        store_port=store[1],
        standbys=standbys,
        max_restarts=identity.max_restarts if identity is not None else 0,
        generation=generation,
        sent_s=sent_s,
        leaving=leaving,
        host=HOST,
        wants=wants,
        min_nodes=identity.min_nodes if identity is not None else 0,
        ledger=node.directive.ledger if node.directive is not None else Ledger(),
    )
