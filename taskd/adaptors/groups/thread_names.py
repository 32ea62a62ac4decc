"""The names by which the kernel, and so taskd, recognises gloo's threads; older torch gives them none.

In torch 2.6 to 2.9 gloo's transport and c10d's workers have the name of the thread that made the group. `settling`,
`unstick` and the agent's search for a rank's wait find these threads by one name. So this module gives them the names
of newer torch.

Rules:

1. Only a thread that came while a group was made, and still has its maker's name, is given one. A Python thread is not.
2. gloo's transport waits in an epoll call with arguments of its own, workers in a futex call.
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
"""Events and timeout of the epoll call of gloo's transport."""
_LOOKS: Final = 2000
"""Most checks of one thread: a thread that is busy just now waits again within microseconds."""

Naming = Callable[[str], AbstractContextManager[None]]
"""Context manager that gives the group formed inside this name in the process's black box."""


def nameless(_name: str) -> AbstractContextManager[None]:
    """Give the group no name."""
    return nullcontext()


class ThreadNames:
    """Names for the threads of one process's groups."""

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
        """Name the threads that were not on a core before; a busy machine may delay them for long."""
        self._pending = {task for task in self._pending if not _name(task)}


def read_task(task: str, what: str) -> str:
    """Return the content of a thread's file; "" if the thread has ended, or this kernel does not show it."""
    try:
        with open(f"/proc/self/task/{task}/{what}") as file:
            return file.read().strip()
    except OSError:
        return ""


def looks_at_call(task: str) -> Iterator[tuple[int, list[int]]]:
    """Yield the call that a thread waits in, number and arguments, again and again: it may be busy just now.

    Ends after `_LOOKS` checks, or when the thread has ended.
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
    """Return whether the thread needs no name any more."""
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
