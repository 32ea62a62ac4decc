"""Threads of ours in a process that is the user's: it neither sees nor feels them.

Rules:

1. `threading` does not know them: a script that joins all threads, or counts them, finds its own alone.
2. They block every signal. A handler runs only when the main thread, or a thread of the script, lets its signal in.
3. A thread that logs is entered into `threading`'s list by `logging`; it takes itself out with `forget`.
4. The kernel knows them by their names, so that nobody takes them for the script's (`threads.py`).
5. As daemons they do not keep the process alive. In a forked child they are not.
"""

import _thread
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from taskd.runtime.system.processes import call_me

logger = logging.getLogger(__name__)
ZEROMQ_NUMBER: Final = 97
"""What ZeroMQ is told to begin the names of its own threads with, in a rank's process."""
ZEROMQ_NAMES: Final = f"{ZEROMQ_NUMBER}/ZMQbg/"

_EVERY: Final = signal.valid_signals() - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Those that a thread brings upon itself come anyway, and whoever handles them is to see them."""
_running: Final[dict[int, "HiddenThread"]] = {}


class HiddenThread:
    """A thread that runs `target` from now on."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name: Final = name
        self._target = target
        self._pid = os.getpid()
        self._ended = threading.Event()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _EVERY)
        try:
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        ident = threading.get_ident()
        _running[ident] = self
        call_me(self.name)
        try:
            self._target()
        except Exception:
            logger.exception("taskd's thread %s has failed", self.name)
        finally:
            forget()
            del _running[ident]
            self._ended.set()

    def is_alive(self) -> bool:
        """Whether it still runs, in this process."""
        return self._pid == os.getpid() and not self._ended.is_set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, at most so long."""
        if self.is_alive():
            self._ended.wait(timeout_s)


def forget() -> None:
    """Take this thread out of `threading`'s list again, if it is a hidden one. To be called when it has logged."""
    ident = threading.get_ident()
    if ident in _running:
        vars(threading)["_active"].pop(ident, None)


def names() -> dict[int, str]:
    """The names of those that run, by their identifiers."""
    return {ident: thread.name for ident, thread in _running.copy().items()}


def join(those: Collection[str], limit_s: float) -> bool:
    """Wait until no thread of these names runs any more; whether that came within `limit_s`."""
    end_s = time.monotonic() + limit_s
    threads = [thread for thread in _running.copy().values() if thread.name in those]
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
