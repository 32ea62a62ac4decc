"""The agent's thread, and the notes that torchrun's main thread leaves for it.

Rules:

1. If anything ends the thread before `finish`, the thread calls `desert`, and no note is accepted any more.
2. torchrun's main thread waits for this one for `STUCK_S` at most.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from taskd.errors import RoomError, TaskdError

logger = logging.getLogger(__name__)
STUCK_S: Final = 5.0
_LOOK_S: Final = 0.1
Note = Callable[[], None]


class AgentLoop:
    """Thread that runs `serve`, which works on notes by calling `work` and returns when `done` is true."""

    def __init__(self, serve: Note, desert: Note) -> None:
        self._serve = serve
        self._desert = desert
        self._notes: deque[Note] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.done = self.deserted = False

    # ---- torchrun's side (main thread)

    def begin(self) -> None:
        """Start the thread, once. Raises `RoomError` if the system does not allow another thread."""
        if self._thread is not None or self.deserted:
            return
        thread = threading.Thread(target=self._run, name="taskd-agent", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._end()
            raise RoomError(f"its thread cannot be started ({error}); allow more processes (ulimit -u)") from error
        self._thread = thread

    def post(self, note: Note) -> bool:
        """Leave a note, and wake the thread. False: it has ended by an error, and accepts no notes."""
        with self._lock:
            if self.deserted:
                return False
            self._notes.append(note)
        os.eventfd_write(self._wake, 1)
        return True

    def settle(self, note: Note) -> None:
        """Leave a note, and wait until it has been worked on."""
        settled = threading.Event()

        def work() -> None:
            note()
            settled.set()

        until_s = time.monotonic() + STUCK_S
        if self.post(work) and self._thread is not None:
            while not settled.wait(_LOOK_S) and self._thread.is_alive() and time.monotonic() < until_s:
                pass  # a thread that ends by an error leaves its notes

    def finish(self) -> bool:
        """End the thread. False: it does not end."""
        self.post(self._finish)
        if self._thread is None:
            return True
        self._thread.join(STUCK_S)
        return not self._thread.is_alive()

    def _finish(self) -> None:
        self.done = True

    def close(self) -> None:
        """Close the descriptor, when the thread has ended."""
        os.close(self._wake)

    # ---- its own side

    def __len__(self) -> int:
        """Return the number of waiting notes."""
        return len(self._notes)

    def fileno(self) -> int:
        """Return a descriptor that is readable while notes wait."""
        return self._wake

    def work(self) -> None:
        """Carry out the waiting notes."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._notes:
            self._notes.popleft()()

    def _run(self) -> None:
        try:
            self._serve()
        except (TaskdError, OSError, zmq.ZMQError) as error:
            logger.error("the agent of this node has ended (%s); torchrun goes on without taskd", error)
            self._end()
        except BaseException:
            logger.exception("the agent of this node has failed; torchrun goes on without taskd (please report this)")
            self._end()

    def _end(self) -> None:
        with self._lock:
            self.deserted = True
            self._notes.clear()
        self._desert()
