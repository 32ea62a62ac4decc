"""The names by which gloo's threads are known to the kernel, and so to us; older torch gives them none.

In torch 2.6 to 2.9 gloo's transport and c10d's workers have the name of the thread that made the group. Whoever looks
for them (`settling`, `unstick`, the agent's search for what a rank waits in) knows one way: here they get the names
that newer torch gives them.

Rules:

1. Only a thread that came while a group was made, and still has its maker's name, is given one. One of Python is not.
2. gloo's transport waits in an epoll of its own shape, workers in a futex call.
"""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

LOOP: Final = "gloo_tcp_loop"
WORKER: Final = "pt_gloo_runloop"
EPOLL_CALLS: Final = {"x86_64": {232, 281, 441}, "aarch64": {22, 441}}.get(platform.machine(), {441})
FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_EVENTS, _TICK_MS = 64, 10
"""What gloo's transport asks epoll for."""
_LOOKS: Final = 2000
"""A thread that is just doing something waits again within microseconds."""

Naming = Callable[[str], AbstractContextManager[None]]
"""What is formed inside has this name in the process's black box."""


def nameless(_name: str) -> AbstractContextManager[None]:
    """Give it no name."""
    return nullcontext()


class ThreadNames:
    """Names threads of the groups of one process."""

    def __init__(self) -> None:
        self._pending: set[str] = set()

    @contextmanager
    def of_new_threads(self) -> Iterator[None]:
        """Name the threads of the gloo group that is made inside."""
        before = set(_tasks())
        try:
            yield
        finally:
            own = read_task(str(threading.get_native_id()), "comm")
            names = {task: read_task(task, "comm") for task in set(_tasks()) - before - _of_python()}
            if LOOP not in names.values():  # else torch names them
                self._pending |= {task for task, name in names.items() if name == own}
                self.complete()

    def complete(self) -> None:
        """Name those that were not on a core before; a busy machine may keep them from it for long."""
        self._pending = {task for task in self._pending if not _name(task)}


def read_task(task: str, what: str) -> str:
    """A file of a thread; "" if it has ended meanwhile, or this kernel does not tell."""
    try:
        with open(f"/proc/self/task/{task}/{what}") as file:
            return file.read().strip()
    except OSError:
        return ""


def looks_at_call(task: str) -> Iterator[tuple[int, list[int]]]:
    """What a thread waits in, number and arguments, again and again: it may be doing something just now.

    Ends after many looks, or when the thread has ended.
    """
    for _ in range(_LOOKS):
        words = read_task(task, "syscall").split()
        if not words:
            return
        if len(words) > 1:
            yield int(words[0]), [int(word, 16) for word in words[1:]]
        os.sched_yield()


def _tasks() -> list[str]:
    return os.listdir("/proc/self/task")


def _of_python() -> set[str]:
    return {str(thread.native_id) for thread in threading.enumerate()}


def _name(task: str) -> bool:
    """Whether it needs no name any more."""
    for number, arguments in looks_at_call(task):
        if number == FUTEX:
            _write(task, WORKER)
            return True
        if number in EPOLL_CALLS and arguments[2:4] == [_EVENTS, _TICK_MS]:
            _write(task, LOOP)
            return True
    return not read_task(task, "syscall")


def _write(task: str, name: str) -> None:
    try:
        with open(f"/proc/self/task/{task}/comm", "w") as file:
            file.write(name)
    except OSError:  # it ended meanwhile
        return
