"""Free this rank and its peers from a stuck gloo collective without the shim.

gloo's transport thread, `gloo_tcp_loop` (`thread_names`), waits in epoll for its sockets. The kernel shows which
sockets: `/proc` has the thread's name, the call it waits in with the epoll descriptor, and the descriptors of that
epoll set. A shutdown of those sockets fails the pairs on both sides. It does not wake a send that gloo has queued but
not started; only the shim does.
"""

import os
import re
import socket
import stat

from taskd.adaptors.groups.thread_names import EPOLL_CALLS, LOOP, looks_at_call, read_task


def break_without_shim() -> int:
    """Shut down every connected socket of every gloo transport thread of this process; return how many were shut."""
    return sum(_shut(descriptor) for epoll in _epolls() for descriptor in _watched(epoll))


def _epolls() -> set[int]:
    loops = [task for task in os.listdir("/proc/self/task") if read_task(task, "comm") == LOOP]
    return {epoll for task in loops if (epoll := _epoll_of(task)) is not None}


def _epoll_of(task: str) -> int | None:
    return next((arguments[0] for number, arguments in looks_at_call(task) if number in EPOLL_CALLS), None)


def _watched(epoll: int) -> list[int]:
    try:
        with open(f"/proc/self/fdinfo/{epoll}") as info:
            return [int(line) for line in re.findall(r"^tfd:\s*(\d+)", info.read(), re.MULTILINE)]
    except OSError:
        return []


def _shut(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed or disconnected meanwhile, as intended
        return False
    return True
