"""Warm processes of one node: one template, and the standbys that it forks.

Rules:

1. The template sends Hello twice: when it is connected, and when its imports are done. It forks only after that, and
   only if it then has one thread. Otherwise it is itself the standby, and another template follows when it is used.
2. Newer standbys replace those that are older than the template's newest imports. So the template imports first, and
   forks before that only for ranks that wait.
3. The wanted number of standbys have their memory ready. One more shares its memory: two ranks may die at once, and a
   fork then takes 40 ms. Its memory is made ready when one of the others has become a rank.
4. A new template replaces one that has ended. After `_MOST_FAILURES` templates in a row that ended before they could
   fork, ranks start cold.
5. Nothing here blocks: `take` returns a standby or None, `wait_s` returns the time that one is worth waiting for.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from taskd.core.warm_starts import RESERVE, Warming, wait_s
from taskd.errors import RecoveryError
from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.runtime.system.installed import only_installed
from taskd.wire.codec import MAX_MODULES_BYTES
from taskd.wire.messages import Hello, Modules
from taskd.wire.standbys import Fork, Prepare

logger = logging.getLogger(__name__)
_MOST_FAILURES: Final = 3


class StandbyPool:
    """Pool of `wanted` standbys and a reserve. `start_template` starts a template process and returns its pid.

    Attributes:
        only: no rank can be started cold.
    """

    only = False

    def __init__(self, server: LocalServer, wanted: int, start_template: Callable[[], int]) -> None:
        self._server = server
        self._wanted = wanted
        self._start_template = start_template
        self._template_pid: int | None = None
        self._template: Peer | None = None
        self._opened = False
        self._hurried = False
        self._ready = False
        self._importing_since_s: float | None = None
        self._first_start_s: float | None = None
        self._forks = True
        self._failures = 0
        """Templates in a row that ended before they could fork."""
        self._idle: list[Peer] = []
        """Idle standbys. Those whose memory is ready, or about to be, come first."""
        self._prepared = 0
        self._waiting = 0
        """Waiting ranks at the last refill. While there are some, new standbys go to them unprepared."""
        self._asked = 0
        self._met: set[int] = set()
        """Standbys that have connected, by pid, until they are reaped or become ranks, whose parent reaps them."""
        self._reaped: set[int] = set()
        """Standbys that were collected last, before any message of theirs was received."""
        self._modules: set[str] = set()
        self._modules_bytes = 0
        self._unsent: list[str] = []
        """Modules whose names were not sent to the template yet."""

    @property
    def count(self) -> int:
        """Standbys that can take a rank now."""
        return len(self._idle) + (self._ready and not self._forks)

    @property
    def pending(self) -> bool:
        """True if a standby was requested and has not arrived yet, or could be requested."""
        return self._ready and self._forks

    @property
    def wait_s(self) -> float:
        """Seconds for which a standby is worth waiting for, if none can take a rank now."""
        since_s = self._importing_since_s
        importing_s = None if since_s is None else time.monotonic() - since_s
        return wait_s(Warming(self.pending, importing_s, self._first_start_s))

    def ranks_started(self, seconds: float) -> None:
        """Record the time that the job's first processes needed from their start to their first commit."""
        self._first_start_s = seconds

    def want(self, count: int) -> None:
        """Keep this number of standbys from now on."""
        self._wanted = count

    def open(self) -> None:
        """Start the template, unless one exists or no standby is wanted. Before this call `refill` starts none."""
        self._opened = True
        if self._wanted and self._template_pid is None:
            try:
                self._template_pid = self._start_template()
            except RecoveryError as error:
                self._opened = False
                logger.error("no warm processes: %s", error)
                return
            self._importing_since_s, self._unsent, self._asked = time.monotonic(), sorted(self._modules), 0
            logger.info("template process %d imports torch to make standbys", self._template_pid)

    def hurry(self) -> None:
        """Make the template import at once. Until then it gives way to the ranks that start."""
        self._hurried = True
        if self._ready:
            self.refill()
        elif self._template is not None:
            self._template.send(Fork(count=0))  # any message does

    def import_modules(self, names: tuple[str, ...]) -> None:
        """Let the template import these modules too, and replace the standbys that lack them.

        Only as many names are kept as fit into one message.
        """
        for name in names:
            size_bytes = self._modules_bytes + len(name.encode()) + 5
            if name not in self._modules and size_bytes <= MAX_MODULES_BYTES:
                self._modules.add(name)
                self._modules_bytes = size_bytes
                self._unsent.append(name)
        if self._ready:
            self._send_modules()

    def import_foreign(self, names: tuple[str, ...]) -> None:
        """Import modules of another node's ranks, as `import_modules` does, if they are installed here."""
        self.import_modules(only_installed(names))

    def _send_modules(self) -> None:
        if self._unsent and self._template is not None:
            self._ready, self._importing_since_s = False, time.monotonic()
            self._template.send(Modules(names=tuple(self._unsent)))
            self._unsent.clear()

    def hello(self, peer: Peer, hello: Hello) -> None:
        """Handle the Hello of a template or standby that has connected, or of a template whose imports are done."""
        if hello.role == "standby":
            if peer.pid in self._reaped:
                self._reaped.discard(peer.pid)
                return
            self._met.add(peer.pid)
            self._asked = max(0, self._asked - 1)
            self._idle.append(peer)
            if not self._waiting:
                self._prepare()
        elif peer.pid != self._template_pid:
            logger.debug("process %d was a template, and has ended", peer.pid)
        elif self._template is not peer:
            self._template = peer
            if self._hurried:
                self.hurry()
        else:
            self._ready, self._forks, self._importing_since_s = True, hello.threads == 1, None
            self._failures = 0
            if not self._forks:
                logger.info(
                    "the template has %d threads after its imports: it serves as a standby itself", hello.threads
                )
            self._retire()
            if not self._unsent:
                self.refill()
            self._send_modules()

    def gone(self, peer: Peer) -> None:
        """Remove a template or standby that has ended."""
        if peer is self._template:
            self._lose_template()
        if peer in self._idle:
            self._prepared -= self._idle.index(peer) < self._prepared
            self._idle.remove(peer)

    def reaped(self, pids: tuple[int, ...]) -> None:
        """Record the collected processes: a template, or standbys, which may never have connected.

        Called without any process too.
        """
        self._reaped.clear()
        for pid in pids:
            if pid == self._template_pid:
                if self._template is None:
                    self._lose_template()
            elif pid in self._met:
                self._met.discard(pid)
            else:
                self._asked = max(0, self._asked - 1)
                self._reaped.add(pid)

    def _lose_template(self) -> None:
        self._failures += not self._ready
        self._template, self._template_pid, self._ready, self._asked = None, None, False, 0
        self._importing_since_s = None
        if self._failures >= _MOST_FAILURES and self._opened:
            self._opened = False
            logger.warning(
                "%d templates in a row ended before they could fork a warm process, expected one that can; ranks start "
                "cold from now on. Look at their errors above, or set TASKD_STANDBY=0",
                self._failures,
            )

    def take(self) -> Peer | None:
        """Remove and return a standby that can take a rank now; None if there is none."""
        if self._idle:
            self._prepared = max(0, self._prepared - 1)
            return self._idle.pop(0)
        if self._ready and not self._forks and self._template is not None:
            peer, self._template, self._template_pid, self._ready = self._template, None, None, False
            return peer
        return None

    def became_rank(self, peer: Peer) -> None:
        """Forget a taken standby that became a rank. Its host reaps it, and another standby may get its pid."""
        self._met.discard(peer.pid)

    def dismiss(self, peer: Peer) -> None:
        """Close the connection to a taken standby that did not become a rank, so that it ends."""
        self._server.drop(peer)

    def kill(self, peer: Peer) -> None:
        """Kill a standby that was ordered to become a rank, and must not."""
        with suppress(ProcessLookupError):
            os.kill(peer.pid, signal.SIGKILL)
        self._server.drop(peer)

    def refill(self, waiting: int = 0) -> None:
        """Request the missing standbys. While ranks are `waiting`, request only as many as these need."""
        self._waiting = waiting
        missing = (waiting or (self._wanted and self._wanted + RESERVE)) - len(self._idle) - self._asked
        if not waiting:
            self._prepare()
        if self._template_pid is None:
            if self._opened:  # it has died, or has become a rank
                self._forks = True
                self.open()
        elif (self._ready or waiting) and self._forks and self._template is not None and missing > 0:
            self._asked += missing
            self._template.send(Fork(count=missing))

    def _prepare(self) -> None:
        for peer in self._idle[self._prepared : self._wanted]:
            peer.send(Prepare())
            self._prepared += 1

    def close(self) -> None:
        """Forget all of them. The process that started them ends them."""
        self._wanted = 0
        for peer in [*self._idle, *([self._template] if self._template is not None else [])]:
            self._server.drop(peer)
        self._idle.clear()
        self._prepared, self._template = 0, None

    def _retire(self) -> None:
        for peer in self._idle:
            self.kill(peer)
        self._idle.clear()
        self._prepared = 0
