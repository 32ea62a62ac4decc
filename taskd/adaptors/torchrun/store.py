"""The store over which the ranks of a new generation find each other: one server per node, hosted by the agent.

Rules:

1. The server lives in torchrun's process, so that no death of a rank takes it away. The manager says which node's is
   used; the others idle.
2. It listens on all interfaces, as torch's own rendezvous store does, at a port that the system chooses.
"""

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from taskd.config.address import LOOPBACK, Address

_TIMEOUT = timedelta(seconds=300)


class NodeStore:
    """The store of one node. `manager` is where other nodes are, None if there are none."""

    def __init__(self, manager: Address | None) -> None:
        self._manager = manager
        self._server: TCPStore | None = None

    def serve(self) -> tuple[str, int]:
        """Start the server, once. Returns host and port by which the other nodes reach it."""
        if self._server is None:
            self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        return self._host(), self._server.port

    def _host(self) -> str:
        if self._manager is None or self._manager.is_loopback:
            return LOOPBACK
        family, _, _, _, address = socket.getaddrinfo(self._manager.host, self._manager.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: the kernel only chooses the way, and with it our own address
            return str(probe.getsockname()[0])
