"""A busy manager: it serves one agent, answers, and then does nothing until a line comes, while its port is open.

Prints its port, and `busy`. Then it answers all peers, and stays until its input ends, so that its messages arrive.
"""

import sys

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.links import ManagerSocket, Peer
from taskd.wire.messages import FromAgent
from tests.wire.peers import LIMIT_S, SECRET, directive


def heard(manager: ManagerSocket, agent_id: str) -> Peer:
    """Serve until this agent has sent a message."""
    while True:
        assert manager.poll(LIMIT_S)
        messages: list[tuple[Peer, FromAgent]] = manager.receive()
        for peer, message in messages:
            if getattr(message, "agent_id", "") == agent_id:
                return peer


def main() -> None:
    """Serve `first`, be busy until a line comes, serve `second`, and stay until there is no more input."""
    with ManagerSocket(Address(LOOPBACK, 0), SECRET) as manager:
        print(manager.address.port, flush=True)
        peer = heard(manager, "first")
        for sequence in range(10):  # no peer reads them, so its end is a reset of the connection
            manager.send(peer, directive(sequence))
        print("busy", flush=True)
        sys.stdin.readline()
        manager.send(heard(manager, "second"), directive(1))
        sys.stdin.read()


if __name__ == "__main__":
    main()
