"""Threads of taskd in a user's process, which its script cannot notice.

Rules:

1. `threading` does not list them: a script that joins all threads, or counts them, finds only its own.
2. They block every signal. A handler runs only when the main thread, or a thread of the script, lets its signal in.
3. A thread that logs is entered into `threading`'s list by `logging`. It removes itself with `forget`.
4. The kernel has their names, so nobody takes them for the script's (`threads.py`).
5. As daemons they do not keep the process alive. A forked child does not have them.
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
"""Number with which ZeroMQ begins the names of its own threads in a rank's process."""
ZEROMQ_NAMES: Final = f"{ZEROMQ_NUMBER}/ZMQbg/"

_EVERY: Final = signal.valid_signals() - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""All signals but those that a thread causes itself. These come anyway, and their handler must get them."""
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
        """Return whether the thread still runs, in this process."""
        return self._pid == os.getpid() and not self._ended.is_set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended, at most `timeout_s` seconds."""
        if self.is_alive():
            self._ended.wait(timeout_s)


def forget() -> None:
    """Remove this thread from `threading`'s list again, if it is a hidden one. Call it after each log."""
    ident = threading.get_ident()
    if ident in _running:
        vars(threading)["_active"].pop(ident, None)


def names() -> dict[int, str]:
    """Return the names of the hidden threads that run, by their identifiers."""
    return {ident: thread.name for ident, thread in _running.copy().items()}


def join(those: Collection[str], limit_s: float) -> bool:
    """Wait until no thread of these names runs any more. Returns whether that came within `limit_s`."""
    end_s = time.monotonic() + limit_s
    threads = [thread for thread in _running.copy().values() if thread.name in those]
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
