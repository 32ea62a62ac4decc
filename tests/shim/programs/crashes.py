"""A worker at step 1 that runs statements: `crashes.py LIBRARY BOX|- STATEMENTS`. Without a box it has no taskd.

The native thread records the places of libraries at each of its beats. From its second beat on, it knows this library.
"""

import ctypes
import faulthandler  # noqa: F401 - for the statements
import os
import signal
import sys
import threading
import time
from pathlib import Path

from taskd.wire.kinds import JobRank

if sys.argv[2] != "-":
    from taskd.runtime.box.blackbox import Box
    from taskd.runtime.box.recorder import Recorder
crash = ctypes.CDLL(sys.argv[1])
if sys.argv[2] != "-":
    r = Recorder()
    r.attach(Path(sys.argv[2]), JobRank(0), 0)
    box = Box.open(Path(sys.argv[2]))
    beats = box.read().native_count
    while box.read().native_count < beats + 2:
        time.sleep(0.01)
    r.step(1)


def await_go(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def show_handlers() -> None:
    """Print this process's handlers as it can read them, and use them."""

    class Action(ctypes.Structure):
        _fields_ = (("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 256))

    libc = ctypes.CDLL(None)

    def shown(number):
        action = Action()
        assert libc.sigaction(number, None, ctypes.byref(action)) == 0
        return action.handler

    signals = [signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT]
    print([shown(number) for number in signals], signal.getsignal(signal.SIGTERM))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(shown(signal.SIGTERM), signal.signal(signal.SIGTERM, print))
    os.kill(os.getpid(), signal.SIGTERM)
    print(signal.signal(signal.SIGTERM, signal.SIG_DFL) is print)
    libc.signal.restype = ctypes.c_void_p
    print(libc.signal(signal.SIGTERM, 1), libc.signal(signal.SIGTERM, 0), libc.sigaction(99, None, None))


def have_children_that_die() -> None:
    pid = os.fork()
    if pid == 0:
        crash.crash(b"segv")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV
    pid = os.fork()
    if pid == 0:
        r.last_words(ValueError("a child's"))
        os.kill(os.getpid(), signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def raise_twice() -> None:
    """Raise an error in another thread first, then here."""

    def hook(kind, error, trace):
        r.last_words(error)
        sys.__excepthook__(kind, error, trace)

    def inner():
        raise KeyError("no\nsuch key")  # here

    sys.excepthook = hook
    threading.excepthook = lambda args: r.last_words(args.exc_value or args.exc_type())
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    r.step(2)
    sys.stdin.readline()
    inner()


class Odd(Exception):  # noqa: N818 - its name is what can be had
    def __str__(self):
        raise RuntimeError


def say_odd_words(go: str) -> None:
    """Record last words that cannot be read, and too many when the file is there."""

    r.last_words(Odd())
    r.step(2)
    sys.stdout.flush()
    await_go(go)
    r.last_words(ValueError("\N{EURO SIGN}" * 5000))
    r.step(3)
    time.sleep(60)


exec(sys.argv[3])
