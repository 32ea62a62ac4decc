"""A real agent with two ranks, and a false manager that sends any order."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.runtime.links.links import ManagerSocket, Peer
from taskd.runtime.links.loopback import secured
from taskd.wire.messages import FromManager, NodeStatus
from tests.fuzz.nodes import Node
from tests.fuzz.wellformed import Known, Maker
from tests.wire.peers import LIMIT_S

_LIFE: Final = 200
"""Number of messages after which another agent replaces one that may have been ordered to end."""
_BATCH: Final = 8
"""Number of messages after which the agent's reports are received: its manager's queue is short."""


class Commands:
    """Random orders of a broken manager."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._sequence = self._generation = self._incarnation = 0
        self.agent_id = ""
        self.maker = Maker(FromManager, dice, self.known)

    def begin(self, agent_id: str) -> None:
        """Start anew for another agent, which has received nothing."""
        self.agent_id = agent_id
        self._sequence = self._generation = self._incarnation = 0

    def frame(self) -> bytes:
        """Return the next frame. Most are newer than those before, so that they are obeyed."""
        dice = self._dice
        self._sequence += dice.random() < 0.9
        self._generation += dice.random() < 0.1
        self._incarnation += dice.random() < 0.02
        kind = dice.choice(("Directive", "Directive", "Directive", None))
        return self.maker.frame(kind, **({"order": dice.choice(("run", "pause", "join", "release"))} if kind else {}))

    def known(self) -> Known:
        """Return the existing objects to which a message may refer."""
        return {
            "job_id": ["job"] * 9 + ["other"],
            "agent_id": [self.agent_id, "another"],
            "node_rank": [0] * 12 + [1, 2],
            "rank": [0, 1, 0, 1, 2, 3],
            "members": [0, 1, 2],
            "donor": [0, 1, 5],
            "receivers": [0, 1, 2],
            "places": [0, 1],
            "incarnation": [self._incarnation] * 9 + [0, -1, self._incarnation + 1],
            "generation": [self._generation] * 9 + [self._generation + 1, 0],
            "term": [1] * 9 + [0, 2],
            "sequence": [self._sequence],
            "probe": [0, 0, self._sequence],
            "number": [self._sequence, 0],
            "world_size": [2, 4, 0],
            "node_count": [2, 2, 2, 1],
            "store_host": ["127.0.0.1", ""],
            "store_port": [1],
            "timeout_s": [1.0, 0.0],
            "peer": ["another"],
            "names": ["json"],
            "records": ["", "mark"],
            **{name: [1, 1, 2] for name in ("ledger", "ranks", "plan", "joins")},
        }


class AgentSide:
    """One agent after the other, all with one manager's socket."""

    def __init__(self, dice: random.Random, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        listen = Address(LOOPBACK, 0)
        self._socket = ManagerSocket(listen, secured(Security(job_id="job"), listen, folder))
        self._commands = Commands(dice)
        self._said = 0
        self._died = 0
        self._node: Node | None = None
        self._peer: Peer | None = None
        self._renew()

    def _renew(self) -> None:
        if self._node is not None:
            self._close_node(self._node)
        self._peer = None
        self._node = Node(self._socket.address, self._folder, 0, 1)
        self._commands.begin(self._node.agent._node.agent_id)
        self._hear_until(self._node)

    def _close_node(self, node: Node) -> None:
        self._died += not node.lives
        if node.agent._link is not None:
            self._counts += node.agent._link.refused
        node.close()

    def _hear_until(self, node: Node, newer_than: int = -1) -> bool:
        """Return whether a report has come within the limit."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s and node.lives:
            self._socket.poll(0.02)
            for peer, message in self._socket.receive():
                if isinstance(message, NodeStatus) and message.agent_id == self._commands.agent_id:
                    self._peer = peer
                    if message.sequence > newer_than:
                        return True
        return False

    def send(self, count: int) -> None:
        for _ in range(count):
            self._said += 1
            if self._said % _LIFE == 0:
                self._renew()
            self._send(self._commands.frame())
            if self._said % _BATCH == 0:
                self._socket.receive()

    def _send(self, frame: bytes) -> None:
        """Send a frame. Room for it means that the agent has read the earlier ones."""
        assert self._peer is not None
        until_s = time.monotonic() + LIMIT_S
        while not self._socket._send(self._peer, frame):
            assert self._node is not None
            assert self._node.lives, "the agent has ended"
            assert time.monotonic() < until_s, "the agent does not read"
            self._socket.poll(0.005)
            self._socket.receive()

    def check(self) -> list[str]:
        """Return a defect if the agent no longer reports."""
        node = self._node
        assert node is not None
        if self._died or not node.lives:
            return [f"the loops of {self._died + (not node.lives)} agents have ended"]
        return [] if self._hear_until(node, node.agent._reports._sequence) else ["the agent reports nothing"]

    def refused(self) -> Counter[str]:
        now = self._node.agent._link if self._node is not None else None
        return self._counts + (now.refused if now is not None else Counter())

    def close(self) -> None:
        if self._node is not None:
            self._close_node(self._node)
        self._socket.close()
