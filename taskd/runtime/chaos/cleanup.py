"""Undoing of a scenario's changes, however `taskd chaos` ends: a process that waits for the end of a socket.

Rules:

1. The order to undo a change is sent before the change is made. The process reads every order that was sent, even if
   the sender is killed right after.
2. There is one way to undo. The socket ends, at Ctrl-C and at SIGKILL alike, and the process undoes all that it keeps,
   the newest first. If the process itself is gone, its owner undoes in its place.
3. It has its own session and ignores the signals by which a terminal or an operator ends a scenario.
"""

import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from taskd.errors import ChaosError
from taskd.runtime.chaos.scenario_run import ENDING, say
from taskd.runtime.chaos.target import TargetProcess, send
from taskd.runtime.chaos.tools import run_tool
from taskd.runtime.system.processes import call_me

NAME: Final = "taskd-cleanup"
_MAX_BYTES: Final = 65536
_READY: Final = b"ready"


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Order to continue a stopped process."""

    pid: int
    start_ticks: int
    name: str


class Commands(msgspec.Struct, frozen=True, tag="commands"):
    """Order to run these commands, one after the other. A failed one does not keep the others from being run."""

    commands: tuple[tuple[str, ...], ...]


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Order to forget an undo, because it is not needed any more."""

    number: int


Undo = Resume | Commands
_Order = Resume | Commands | Drop


class Cleanup:
    """Orders to undo. The cleanup process starts with the first `keep`."""

    def __init__(self) -> None:
        self._kept: dict[int, Undo] = {}
        self._next = 0
        self._pid = 0
        self._link: socket.socket | None = None

    def keep(self, undo: Undo) -> int:
        """Keep an order to undo at the end, unless it is dropped before. Call it before the change itself."""
        number = self._next
        self._tell(undo)
        self._kept[number] = undo
        self._next += 1
        return number

    def drop(self, number: int) -> None:
        """Drop an order, because it has been carried out or its change never came about."""
        self._tell(Drop(number))
        del self._kept[number]

    def close(self) -> bool:
        """Undo all that is kept. Returns whether that succeeded."""
        if self._link is None:
            return True
        self._link.close()
        self._link = None
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if status >= 0:
            return status == 0
        say(f"the cleanup process (pid {self._pid}) was killed; undoing in its place")
        return undo_all(self._kept.values())

    def _tell(self, order: _Order) -> None:
        if self._link is None:
            self._start()
        assert self._link is not None
        try:
            self._link.send(msgspec.msgpack.encode(order))
        except OSError as error:
            raise ChaosError(
                f"the cleanup process that undoes what is done here is gone ({error.strerror}), expected it to live: "
                "somebody has killed it; the scenario ends"
            ) from error

    def _start(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._link.close()
            _guard(theirs)
        theirs.close()
        self._link.recv(_MAX_BYTES)  # it is out of reach of Ctrl-C now, or has ended, which the next message shows


def undo_all(kept: Iterable[Undo]) -> bool:
    """Undo the newest first, and print each. Returns whether all succeeded."""
    good = True
    for undo in reversed(list(kept)):
        try:
            told = _undo(undo)
        except ChaosError as error:
            good, told = False, f"NOT undone: {error}"
        say(told)
    return good


def _undo(undo: Undo) -> str:
    match undo:
        case Resume(pid=pid, start_ticks=start_ticks, name=name):
            target = TargetProcess(pid, start_ticks, name)
            went = send(
                target, signal.SIGCONT, belongs=lambda _pid: True
            )  # any parent is accepted: the scenario itself has stopped it
            return f"undone: {target}: SIGCONT" if went else f"nothing to undo: {target} has ended"
        case Commands(commands=commands):
            failed = [complaint for words in commands if (complaint := _complaint(words))]
            if failed:
                raise ChaosError("; ".join(failed))
            return f"undone: {'; '.join(map(' '.join, commands))}"


def _complaint(words: tuple[str, ...]) -> str:
    try:
        run_tool(words)
    except ChaosError as error:
        return str(error)
    return ""


def _guard(link: socket.socket) -> NoReturn:
    """Run the cleanup process to its end."""
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*ENDING, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        call_me(NAME)
        link.send(_READY)
        status = 0 if undo_all(_receive(link).values()) else 1
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def _receive(link: socket.socket) -> dict[int, Undo]:
    """Return all orders that are kept when the sender has gone."""
    kept: dict[int, Undo] = {}
    number = 0
    decoder = msgspec.msgpack.Decoder(_Order)
    while True:
        try:
            packet = link.recv(_MAX_BYTES)
        except ConnectionError:
            return kept
        if not packet:
            return kept
        match decoder.decode(packet):
            case Drop(number=dropped):
                kept.pop(dropped, None)
            case undo:
                kept[number] = undo
                number += 1
