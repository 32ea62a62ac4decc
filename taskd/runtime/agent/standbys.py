"""The warm processes of one node: one template, and the standbys that it forks.

Rules:

1. The template says Hello twice: when it is connected, and when its imports are done. It forks only after that, and
   only if it then has one thread; otherwise it is itself the standby, and another template follows when it is used.
2. Standbys that are older than the newest imports of the template are replaced by newer ones. So it imports first, and
   forks before that only for ranks that wait.
3. As many as are wanted have their memory ready. One more waits that shares its memory: two ranks may die at once, and
   to fork then takes 40 ms. It is made ready when one of the others has become a rank.
4. A new template replaces one that has ended. After `_MOST_FAILURES` in a row that ended before they could fork,
   ranks start cold.
5. Nobody waits here: `take` gives a standby or None, `wait_s` tells how long one is worth waiting for.
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
    """Keeps `wanted` standbys ready, and a reserve. `start_template` starts a template process and returns its pid.

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
        """Those that are ready, or about to be, come first."""
        self._prepared = 0
        self._waiting = 0
        """Waiting ranks at the last refill. While there are some, new standbys go to them unprepared."""
        self._asked = 0
        self._met: set[int] = set()
        """Standbys that have connected, by pid, until they are reaped or become ranks, whose parent reaps them."""
        self._reaped: set[int] = set()
        """Those among the last that were collected before anything of them was received."""
        self._modules: set[str] = set()
        self._modules_bytes = 0
        self._unsent: list[str] = []
        """Those among the modules that the template has not been told of."""

    @property
    def count(self) -> int:
        """Standbys that can take a rank now."""
        return len(self._idle) + (self._ready and not self._forks)

    @property
    def pending(self) -> bool:
        """A standby has been asked for and has not arrived yet, or could be asked for."""
        return self._ready and self._forks

    @property
    def wait_s(self) -> float:
        """Seconds for which a standby is worth waiting for, if none can take a rank now."""
        since_s = self._importing_since_s
        importing_s = None if since_s is None else time.monotonic() - since_s
        return wait_s(Warming(self.pending, importing_s, self._first_start_s))

    def ranks_started(self, seconds: float) -> None:
        """Learn what the job's first processes needed from their start to their first commit."""
        self._first_start_s = seconds

    def want(self, count: int) -> None:
        """Keep so many from now on."""
        self._wanted = count

    def open(self) -> None:
        """Start the template, unless there is one or none is wanted. `refill` starts none before this was called."""
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
        """Have the template import at once: until then it stands back behind the ranks that start."""
        self._hurried = True
        if self._ready:
            self.refill()
        elif self._template is not None:
            self._template.send(Fork(count=0))  # any message does

    def import_modules(self, names: tuple[str, ...]) -> None:
        """Let the template import these too, and replace the standbys that lack them. What fits one message is kept."""
        for name in names:
            size_bytes = self._modules_bytes + len(name.encode()) + 5
            if name not in self._modules and size_bytes <= MAX_MODULES_BYTES:
                self._modules.add(name)
                self._modules_bytes = size_bytes
                self._unsent.append(name)
        if self._ready:
            self._send_modules()

    def import_foreign(self, names: tuple[str, ...]) -> None:
        """As `import_modules`, of those that another node's ranks have imported and that are installed here."""
        self.import_modules(only_installed(names))

    def _send_modules(self) -> None:
        if self._unsent and self._template is not None:
            self._ready, self._importing_since_s = False, time.monotonic()
            self._template.send(Modules(names=tuple(self._unsent)))
            self._unsent.clear()

    def hello(self, peer: Peer, hello: Hello) -> None:
        """A template or standby has connected, or a template has finished its imports."""
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
        """A template or standby has ended."""
        if peer is self._template:
            self._lose_template()
        if peer in self._idle:
            self._prepared -= self._idle.index(peer) < self._prepared
            self._idle.remove(peer)

    def reaped(self, pids: tuple[int, ...]) -> None:
        """Processes were collected: a template, or standbys, which may never have connected. Called for none too."""
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
        """A standby that can take a rank now; it is no longer of the pool."""
        if self._idle:
            self._prepared = max(0, self._prepared - 1)
            return self._idle.pop(0)
        if self._ready and not self._forks and self._template is not None:
            peer, self._template, self._template_pid, self._ready = self._template, None, None, False
            return peer
        return None

    def became_rank(self, peer: Peer) -> None:
        """Forget one that was taken. Its host reaps it, and its number may come back as another standby's."""
        self._met.discard(peer.pid)

    def dismiss(self, peer: Peer) -> None:
        """Let one end that was taken, and became no rank."""
        self._server.drop(peer)

    def kill(self, peer: Peer) -> None:
        """End one that was ordered to become a rank, and must not."""
        with suppress(ProcessLookupError):
            os.kill(peer.pid, signal.SIGKILL)
        self._server.drop(peer)

    def refill(self, waiting: int = 0) -> None:
        """Ask for as many standbys as are missing. While ranks are `waiting`, only for as many as these need."""
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
        """Forget all of them; whoever started the processes ends them."""
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
