"""The warm processes of one node: one template, and the standbys that it forks.

Rules:

1. The template says Hello twice: when it is connected, and when its imports are done. It forks only after that, and
   only if it then has one thread; otherwise it is itself the standby, and another template follows when it is used.
2. Standbys that are older than the newest imports of the template are replaced by newer ones.
3. Nobody waits here: `take` gives a standby or None, `pending` tells whether one is on its way.
"""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.wire.codec import MAX_MODULES_BYTES
from taskd.wire.messages import Hello, Modules
from taskd.wire.standbys import Fork

logger = logging.getLogger(__name__)


class StandbyPool:
    """Keeps `wanted` standbys. `start_template` starts a template process and returns its pid.

    Attributes:
        wait_s: one that was asked for is awaited so long; then the rank is started cold.
        only: no rank can be started cold.
    """

    wait_s = 5.0
    only = False

    def __init__(self, server: LocalServer, wanted: int, start_template: Callable[[], int]) -> None:
        self._server = server
        self._wanted = wanted
        self._start_template = start_template
        self._template_pid: int | None = None
        self._template: Peer | None = None
        self._opened = False
        self._ready = False
        self._forks = True
        self._idle: list[Peer] = []
        self._asked = 0
        self._modules: set[str] = set()
        self._modules_bytes = 0

    @property
    def count(self) -> int:
        """Standbys that can take a rank now."""
        return len(self._idle) + (self._ready and not self._forks)

    @property
    def pending(self) -> bool:
        """A standby has been asked for and has not arrived yet, or could be asked for."""
        return self._ready and self._forks

    def want(self, count: int) -> None:
        """Keep so many from now on."""
        self._wanted = count

    def open(self) -> None:
        """Start the template, unless there is one or none is wanted. `refill` starts none before this was called."""
        self._opened = True
        if self._wanted and self._template_pid is None:
            self._template_pid = self._start_template()
            logger.info("template process %d imports torch to make standbys", self._template_pid)

    def import_modules(self, names: tuple[str, ...]) -> None:
        """Let the template import these too, and replace the standbys that lack them. What fits one message is kept."""
        new = []
        for name in names:
            size_bytes = self._modules_bytes + len(name.encode()) + 5
            if name not in self._modules and size_bytes <= MAX_MODULES_BYTES:
                self._modules.add(name)
                self._modules_bytes = size_bytes
                new.append(name)
        if new and self._template is not None:
            self._ready = False
            self._template.send(Modules(names=tuple(new)))

    def hello(self, peer: Peer, hello: Hello) -> None:
        """A template or standby has connected, or a template has finished its imports."""
        if hello.role == "standby":
            self._asked = max(0, self._asked - 1)
            self._idle.append(peer)
        elif self._template is not peer:
            self._template = peer
            if self._modules:
                peer.send(Modules(names=tuple(sorted(self._modules))))
        else:
            self._ready, self._forks = True, hello.threads == 1
            if not self._forks:
                logger.info(
                    "the template has %d threads after its imports: it serves as a standby itself", hello.threads
                )
            self._retire()
            self.refill()

    def gone(self, peer: Peer) -> None:
        """A template or standby has ended."""
        if peer is self._template:
            self._template, self._template_pid, self._ready, self._asked = None, None, False, 0
        with suppress(ValueError):
            self._idle.remove(peer)

    def take(self) -> Peer | None:
        """A standby that can take a rank now; it is no longer of the pool."""
        if self._idle:
            return self._idle.pop(0)
        if self._ready and not self._forks and self._template is not None:
            peer, self._template, self._template_pid, self._ready = self._template, None, None, False
            return peer
        return None

    def refill(self, extra: int = 0) -> None:
        """Ask for as many standbys as are missing, and `extra` ones for ranks that wait."""
        missing = self._wanted + extra - len(self._idle) - self._asked
        if self._template_pid is None:
            if self._opened:  # it has died, or has become a rank
                self.open()
        elif self._ready and self._forks and self._template is not None and missing > 0:
            self._asked += missing
            self._template.send(Fork(count=missing))

    def close(self) -> None:
        """Forget all of them; whoever started the processes ends them."""
        self._wanted = 0
        for peer in [*self._idle, *([self._template] if self._template is not None else [])]:
            self._server.drop(peer)
        self._idle.clear()
        self._template = None

    def _retire(self) -> None:
        for peer in self._idle:
            with suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)
            self._server.drop(peer)
        self._idle.clear()
