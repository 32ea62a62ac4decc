"""torch's `FileBaton`, the lock on a folder in which an extension is built: a rank killed in a build leaves it behind.

Every later process of every later job then waits in `FileBaton.wait` for ever. So a rank signs the locks that it makes.
It takes over a lock whose owner is provably dead (`core/diagnosis/locks.py`), and its build starts anew.

Rules:

1. torch's own functions do the work; ours stand around them. To torch a signed lock stays what it was: a file.
2. A process that builds nothing never imports torch.utils.file_baton. There only the wait for that import is installed.
3. The locks of other caches do not need this. Inductor's (`filelock`) are the kernel's `flock`, which ends with its
   owner. Triton renames whole files.
4. A rank that has waited does not build, because torch has recorded in it that this version is built. If a recovery
   interrupts its wait, it leaves the lock to others. If nobody takes the lock over, the rank ends, and a new process
   takes it over.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from taskd.adaptors.seams.parts import IN_BUILDS
from taskd.core.diagnosis.locks import Hold, Holding
from taskd.errors import StaleLockError
from taskd.runtime.worker import lockfile, worker
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.wire import text
from taskd.wire.accounts import LockSeen

logger = logging.getLogger(__name__)
LOOK_S: Final = 1.0
"""Interval between two checks of the lock's owner during a wait, in seconds."""
TELL_S: Final = 120.0
"""Wait after which the lock is logged, in seconds, unless a living process holds it."""
GRACE_S: Final = 60.0
"""Time for a rank's successor to start with the script and reach the lock that it takes over, in seconds."""


def watch_batons(module: ModuleType) -> None:
    """Sign this process's locks and take stale ones over from now on. Called once, after the module's import."""
    link = worker.current()
    misfit = IN_BUILDS.misfit()
    if misfit:
        if link is not None and link.config.rank == 0:
            logger.warning("%s", misfit)
        return
    baton: Any = module.FileBaton
    broken_off: set[str] = set()
    for name, made in (
        ("try_acquire", _signing(baton.try_acquire, broken_off)),
        ("wait", _watching(baton.wait, broken_off)),
        ("release", _releasing(baton.release)),
    ):
        setattr(baton, name, made)


def _signing(stock: Callable[[Any], Any], broken_off: set[str]) -> Any:
    def try_acquire(baton: Any) -> Steps:
        path, told = os.path.abspath(baton.lock_file_path), False
        while not (yield ORIGINAL):
            taken, holding = (None, lockfile.look(path)) if path in broken_off else lockfile.take(path)
            if taken is not None:
                baton.fd = taken
                logger.warning("the stale lock %s was removed: %s. This process has it now", path, holding.words)
                return True
            if holding.hold is not Hold.LEFT:
                return False
            if not told:
                told = True
                logger.warning("the lock %s is waited for: %s", path, holding.words)
            with _waiting(path, broken_off):
                _tell_link(path, holding)
                time.sleep(baton.wait_seconds)
        lockfile.sign(baton.fd)
        return True

    return around(stock, try_acquire)


def _watching(stock: Callable[[Any], Any], broken_off: set[str]) -> Any:
    def wait(baton: Any) -> Steps:
        watched = _Watched(baton)
        with _waiting(watched.path, broken_off):
            return (yield stock, (watched,), {})

    return around(stock, wait)


@contextmanager
def _waiting(path: str, broken_off: set[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        broken_off.add(path)
        raise
    finally:
        _tell_link(path, None)


def _releasing(stock: Callable[[Any], Any]) -> Any:
    def release(baton: Any) -> Steps:
        held = os.dup(baton.fd) if baton.fd is not None else None
        try:
            return (yield ORIGINAL)  # torch closes the file, then removes it: until then the owner must seem alive
        finally:
            if held is not None:
                os.close(held)

    return around(stock, release)


class _Watched:
    """Stand-in for the baton in torch's own wait loop, which reads `wait_seconds` in each round."""

    def __init__(self, baton: Any) -> None:
        self._baton = baton
        self.path = os.path.abspath(baton.lock_file_path)
        self._begun_s = time.monotonic()
        self._looked_s = -LOOK_S
        self._stale_s: float | None = None
        self._holding: Holding | None = None
        self._told = ""

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the baton that torch reads."""
        return getattr(self._baton, name)

    @property
    def wait_seconds(self) -> Any:
        """Pause between two rounds, in seconds, as torch has set it.

        Checks the lock at most once in `LOOK_S`, and reports it to the worker.

        Raises:
            StaleLockError: nobody has taken the stale lock over within `GRACE_S`.
            BaseException: whatever leaves the resilient function, if it must be left now.
        """
        now_s = time.monotonic()
        if self._holding is None or now_s - self._looked_s >= LOOK_S:
            self._holding, self._looked_s = lockfile.look(self.path), now_s
            self._judge(self._holding, now_s)
        _tell_link(self.path, self._holding)
        return self._baton.wait_seconds

    def _judge(self, holding: Holding, now_s: float) -> None:
        waited_s = now_s - self._begun_s
        if waited_s >= TELL_S and holding.hold is not Hold.HELD and holding.words != self._told:
            self._told = holding.words
            remedy = "" if holding.hold is not Hold.UNKNOWN else "; if nobody builds there, remove it"
            logger.warning("for %.0f s this waits for the lock %s: %s%s", waited_s, self.path, holding.words, remedy)
        if holding.hold is not Hold.STALE:
            self._stale_s = None
        elif self._stale_s is None:
            self._stale_s = now_s
        elif now_s - self._stale_s >= GRACE_S:
            raise StaleLockError(
                f"found the lock {self.path}, of which {holding.words}, expected somebody to build what it is for; a "
                "new process of this rank takes it over"
            )


def _tell_link(path: str, holding: Holding | None) -> None:
    link = worker.current()
    if link is None or threading.current_thread() is not threading.main_thread():
        return
    seen = None
    if holding is not None:
        stale = holding.hold is Hold.STALE
        seen = LockSeen(path=text.line(path), owner=text.line(holding.words), pid=holding.pid, stale=stale)
    link.waits_for(seen)
