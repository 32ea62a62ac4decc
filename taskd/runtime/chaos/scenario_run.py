"""One run of a scenario: it prints each action, and detects when the scenario has to end.

Rules:

1. Every action is one line with the time of day, flushed at once. A closed output does not end the scenario.
2. A scenario waits only in `ScenarioRun.pause`, which returns at once when it has to end: at SIGINT, SIGTERM, SIGHUP,
   SIGQUIT or SIGTSTP (a suspended scenario could not undo), after `for_s`, and with the process that it follows.
3. A dry run prints every action as one that would be done, and no scenario lasts.
"""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Final

from taskd.runtime.chaos.target import open_handle
from taskd.wire.text import line

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
JOB_HAS_ENDED: Final = "the job has ended on this node"
_MUCH: Final = 4096


def say(text: str) -> None:
    """Print one line for people, with the time of day."""
    with suppress(BrokenPipeError):
        print(f"{time.strftime('%H:%M:%S')} {line(text)}", flush=True)  # noqa: T201 # it is a command's result


class ScenarioRun:
    """One run of one scenario."""

    def __init__(self, *, for_s: float | None = None, dry: bool = False) -> None:
        self.dry = dry
        self.reason = ""
        """Reason for the scenario's end; "" while it goes on."""
        self._for_s = inf if for_s is None else for_s
        self._end_s = inf
        self._followed: int | None = None
        self._told = False
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @contextmanager
    def open(self) -> Iterator["ScenarioRun"]:
        """Handle the signals that end a scenario, while in it."""
        before = {number: signal.signal(number, self._note) for number in ENDING}
        outer = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(outer)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (self._woken, self._wakes, self._followed):
                if descriptor is not None:
                    os.close(descriptor)

    def follow(self, pid: int) -> None:
        """Start the scenario's time. The scenario ends with this process."""
        self._end_s = time.monotonic() + self._for_s
        try:
            self._followed = open_handle(pid)
        except ProcessLookupError:
            self.reason = JOB_HAS_ENDED

    def _note(self, number: int, _frame: object) -> None:
        self.reason = signal.Signals(number).name

    @property
    def on(self) -> bool:
        """True while the scenario goes on."""
        if not self.reason and time.monotonic() >= self._end_s:
            self.reason = f"{self._for_s:g} s are over"
        return not self.reason and not self.dry

    def act(self, text: str) -> bool:
        """Print an action that comes now. Returns False if it must not be done: in a dry run, or at the end."""
        if self.dry:
            say(f"would do: {text}")
        elif not self.reason:
            say(text)
            return True
        return False

    def pause(self, timeout_s: float | None = None, *descriptors: int) -> bool:
        """Wait this long, until a descriptor can be read, or until the end. Returns whether the scenario goes on."""
        due_s = inf if timeout_s is None else time.monotonic() + timeout_s
        own = [self._woken, *(() if self._followed is None else (self._followed,))]
        while self.on:
            left_s = min(due_s, self._end_s) - time.monotonic()
            if left_s <= 0 and due_s <= self._end_s:
                break
            ready = select.select([*own, *descriptors], [], [], None if left_s == inf else max(0.0, left_s))[0]
            if self._woken in ready:
                os.read(self._woken, _MUCH)
            if self._followed in ready:
                self.reason = self.reason or JOB_HAS_ENDED
            if any(descriptor in ready for descriptor in descriptors):
                break
        return self.on or self.tell_end()

    def tell_end(self) -> bool:
        """Print why the scenario ends, once, if it does. Always returns False."""
        if self.reason and not self._told:
            self._told = True
            say(f"the scenario ends: {self.reason}")
        return False
