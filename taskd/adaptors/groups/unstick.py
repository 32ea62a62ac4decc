"""Free this rank and its peers from a stuck gloo collective without the shim.

gloo's transport thread, `gloo_tcp_loop` (`thread_names`), waits in epoll for its sockets. The kernel tells which:
`/proc` has the thread's name, the call it waits in with the epoll descriptor, and the descriptors of that epoll set. A
shutdown of those sockets fails the pairs on both sides. It does not wake a send that gloo has queued but not begun;
only the shim does.
"""

import os
import re
import socket
import stat

from taskd.adaptors.groups.thread_names import EPOLL_CALLS, LOOP

_LOOKS = 2000  # a loop that is just serving a socket is not in epoll; it is again within microseconds


def break_without_shim() -> int:
    """Shut down every connected socket of every gloo transport thread of this process; return how many were shut."""
    return sum(_shut(descriptor) for epoll in _epolls() for descriptor in _watched(epoll))


def _epolls() -> set[int]:
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                if comm.read().strip() != LOOP:
                    continue
            epoll = _epoll_of(task)
        except OSError:  # the thread ended while we looked
            continue
        if epoll is not None:
            found.add(epoll)
    return found


def _epoll_of(task: str) -> int | None:
    for _ in range(_LOOKS):
        with open(f"/proc/self/task/{task}/syscall") as file:
            words = file.read().split()
        if len(words) > 1 and int(words[0]) in EPOLL_CALLS:
            return int(words[1], 16)
        os.sched_yield()
    return None


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
    except OSError:  # closed or disconnected meanwhile: what we wanted
        return False
    return True
