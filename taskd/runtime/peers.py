"""By which connection a manager speaks to each agent, and which of those that wait for a place are told of already.

Rules:

1. Names cost nothing: an agent that the core has forgotten is forgotten here before there are twice as many as those.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from taskd.runtime.links import Peer

LEAST: Final = 64
"""So many are kept without a look at which of them are known."""


class Peers:
    """The agents of one job. `known` names those that the core knows."""

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._peers: dict[str, Peer] = {}
        self._waiting: set[str] = set()
        self._most = LEAST

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        """Whoever is to hear a directive."""
        return iter(self._peers.values())

    def get(self, agent_id: str) -> Peer | None:
        """By which to answer an agent; None if it was never heard, or not for long."""
        return self._peers.get(agent_id)

    def hear(self, agent_id: str, peer: Peer) -> None:
        """An agent has reported."""
        self._peers[agent_id] = peer
        if len(self._peers) > self._most:
            known = {*self._known(), agent_id}
            self._peers = {name: known_peer for name, known_peer in self._peers.items() if name in known}
            self._waiting &= known
            self._most = 2 * len(self._peers) + LEAST

    def waits(self, agent_id: str) -> bool:
        """An agent waits for a place; whether that is news."""
        news = agent_id not in self._waiting
        self._waiting.add(agent_id)
        return news
