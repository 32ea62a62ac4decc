"""The store in which the ranks of a new generation find each other: one server per node, hosted by the agent.

Rules:

1. The server lives in torchrun's process, so no rank's death removes it. The manager names the node whose server is
   used; the others idle.
2. A store has no users and no passwords. If the job is on one node, it listens on loopback alone. Otherwise it listens
   on all interfaces, as torch's own rendezvous store does. The system chooses the port.
3. All keys begin with a text that nobody can guess. It travels on the job's encrypted links alone.
"""

import logging
import secrets
import socket
from datetime import timedelta
from typing import Final

from torch.distributed import TCPStore

from taskd.config.address import LOOPBACK, Address
from taskd.core.rendezvous import Rendezvous

logger = logging.getLogger(__name__)
_TIMEOUT: Final = timedelta(seconds=300)
_KEY_BYTES: Final = 16


class NodeStore:
    """Store of one node. `manager`: address under which the other nodes are reached, None if there are none."""

    def __init__(self, manager: Address | None) -> None:
        self._manager = manager
        self._server: TCPStore | None = None
        self._key = secrets.token_hex(_KEY_BYTES)

    def serve(self) -> Rendezvous:
        """Start the server, once. Returns the address and key by which other nodes reach it."""
        host = self._host()
        if self._server is None:
            self._server = _on_loopback() if host == LOOPBACK else _everywhere()
        return Rendezvous(host, self._server.port, self._key)

    def _host(self) -> str:
        if self._manager is None or self._manager.is_loopback:
            return LOOPBACK
        family, _, _, _, address = socket.getaddrinfo(self._manager.host, self._manager.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: the kernel only chooses the route, and with it our own address
            return str(probe.getsockname()[0])


def _everywhere() -> TCPStore:
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)


def _on_loopback() -> TCPStore:
    """Return a server that only this machine reaches: torch binds to all interfaces unless it is given a socket."""
    listener = socket.create_server((LOOPBACK, 0))
    port = int(listener.getsockname()[1])
    descriptor = listener.detach()  # torch owns it from here on
    try:
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=_TIMEOUT,
            master_listen_fd=descriptor,
            use_libuv=False,  # before torch 2.9 libuv's server accepts no socket
        )
    except (RuntimeError, TypeError, ValueError) as error:
        logger.warning("torch's store cannot be kept to loopback (%s): it listens on all interfaces", error)
        return _everywhere()
