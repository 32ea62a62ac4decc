"""A manager that is busy: it hears one agent, answers, and then nothing until it is told, while its port is open.

Prints its port, and `busy`. Then it answers who comes, and stays until its input ends: what it has sent is on its way.
"""

import sys

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.links import ManagerSocket, Peer
from taskd.wire.messages import FromAgent
from tests.wire.peers import LIMIT_S, SECRET, directive


def heard(manager: ManagerSocket, agent_id: str) -> Peer:
    """Serve until this agent is heard."""
    while True:
        assert manager.poll(LIMIT_S)
        messages: list[tuple[Peer, FromAgent]] = manager.receive()
        for peer, message in messages:
            if getattr(message, "agent_id", "") == agent_id:
                return peer


def main() -> None:
    """Hear `first`, be busy until a line comes, hear `second`, and stay until there is no more input."""
    with ManagerSocket(Address(LOOPBACK, 0), SECRET) as manager:
        print(manager.address.port, flush=True)
        peer = heard(manager, "first")
        for sequence in range(10):  # which nobody reads: so its end is a reset of the connection
            manager.send(peer, directive(sequence))
        print("busy", flush=True)
        sys.stdin.readline()
        manager.send(heard(manager, "second"), directive(1))
        sys.stdin.read()


if __name__ == "__main__":
    main()
