"""Search for file systems of this node without space.

Rules:

1. A file server that does not answer blocks the query. So a thread makes it; a blocked one is left behind, and no
   second one is started.
2. Only file systems that can be written to and have a size are queried.
"""

import os
import threading
from collections.abc import Iterator
from typing import Final

from taskd.runtime.system.processes import read

_MOST: Final = 64
_WITHOUT_SIZE: Final = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl",
        "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "squashfs", "sysfs",
        "tracefs",
    )
)  # fmt: skip
_asking = threading.Lock()


def full_disk(pid: int, timeout_s: float = 0.05) -> str | None:
    """Return the mount point of a file system without space, or without room for a file, that the process can reach.

    None if there is none, or if none is found in time.
    """
    if not _asking.acquire(blocking=False):
        return None
    found: list[str] = []
    thread = threading.Thread(target=_search, args=(pid, found), name="taskd-disks", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no further thread can be had
        _asking.release()
        return None
    thread.join(timeout_s)
    return found[0] if found else None


def _search(pid: int, found: list[str]) -> None:
    try:
        found.extend(place for place in _places(pid) if _is_full(place))
    finally:
        _asking.release()


def _places(pid: int) -> Iterator[str]:
    mounts = read(f"/proc/{pid}/mounts") or read("/proc/self/mounts") or ""
    for line in mounts.splitlines()[:_MOST]:
        _, place, kind, options, *_ = [*line.split(" "), "", "", ""]
        if kind not in _WITHOUT_SIZE and "rw" in options.split(","):
            yield place.replace("\\040", " ")


def _is_full(place: str) -> bool:
    try:
        known = os.statvfs(place)
    except OSError:
        return False
    return (known.f_blocks > 0 and known.f_bavail == 0) or (known.f_files > 0 and known.f_favail == 0)
