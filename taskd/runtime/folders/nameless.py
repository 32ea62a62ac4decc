"""Memory and sockets of an agent that have no name in any folder: `/proc/AGENT/fd/NUMBER` leads to them.

Rules:

1. The agent holds a descriptor, and the kernel lets this user alone go through it. No cleaner of folders reaches it,
   and it ends with the agent, however that ends.
2. Memory is sealed against shrinking: a process that has mapped it never meets the end of a file that was cut, which
   is a SIGBUS. Nobody can add another seal.
3. Where the kernel refuses such memory, a file takes its place whose name is removed at once.
4. A rank takes what it opens only if it is a file of this user. A path outside /proc is a file with a name, which is
   made if it is not there, and never reached through a link.
"""

import errno
import fcntl
import os
import socket
import stat
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from taskd.runtime.system.memfd import make_memfd

_PROCESSES: Final = Path("/proc")
_CLOEXEC, _ALLOW_SEALING, _NOEXEC_SEAL = 1, 2, 8
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK = 1033, 1, 2
_MAGIC: Final = b"taskdrec"
_HEAD_BYTES: Final = 24
"""Of a record: the magic number, its length, and its check sum."""


class KeptMemory:
    """Memory of this process that others reach by `path` while this process holds it.

    Raises:
        OSError: there is none; too many descriptors are open, or nothing can be written to `folder` either.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """`name` is for people who look at /proc; `folder`: where a file is made if the kernel has no such memory."""
        try:
            self._descriptor = _sealed(name)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self._descriptor = _unlinked(folder)
        self.path = way_to(self._descriptor)

    def close(self) -> None:
        """It goes when nobody has mapped it any more."""
        os.close(self._descriptor)


def way_to(descriptor: int) -> Path:
    """Return the path by which other processes of this user reach an open file of this one."""
    return _PROCESSES / str(os.getpid()) / "fd" / str(descriptor)


def open_kept(path: Path) -> int:
    """Open memory of the agent, or a file with a name, to read and write. Raises `OSError`, also if it is another's."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if _PROCESSES not in path.parents:
        flags |= os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    what = f"found mode {found.st_mode:o} of user {found.st_uid}, expected a regular file of user {os.geteuid()}"
    raise OSError(errno.EPERM, what, str(path))


def write_record(path: Path, content: bytes) -> None:
    """Put a record in the place of the one there is, which is erased first: half of one is never read."""
    erase_record(path)
    descriptor = open_kept(path)
    try:
        with open(descriptor, "r+b", buffering=0, closefd=False) as file:
            file.seek(_HEAD_BYTES)
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
        head = _MAGIC + len(content).to_bytes(8, "little") + zlib.crc32(content).to_bytes(8, "little")
        os.pwrite(descriptor, head, 0)
    finally:
        os.close(descriptor)


def read_record(path: Path) -> bytes | None:
    """Return the record; None if there is none. Raises `OSError`, and `ValueError` for one that is damaged."""
    try:
        descriptor = open_kept(path) if path.exists() else -1
    except FileNotFoundError:
        descriptor = -1
    if descriptor < 0:
        return None
    with open(descriptor, "rb") as file:
        head = file.read(_HEAD_BYTES)
        if not any(head):
            return None
        size_bytes = int.from_bytes(head[8:16], "little")
        whole = head[:8] == _MAGIC and size_bytes <= os.fstat(descriptor).st_size - _HEAD_BYTES
        content = file.read(size_bytes) if whole else b""
    if not whole or zlib.crc32(content) != int.from_bytes(head[16:], "little"):
        raise ValueError("found a damaged record, expected its length and its check sum")
    return content


def erase_record(path: Path) -> None:
    """There is none any more. Raises `OSError`."""
    descriptor = open_kept(path)
    try:
        os.pwrite(descriptor, bytes(_HEAD_BYTES), 0)
    finally:
        os.close(descriptor)


def unname(listener: socket.socket, path: Path) -> tuple[Path, int]:
    """Take away the name of a Unix socket that listens at `path`.

    Returns:
        The path by which processes of this user connect, and the descriptor to keep open for it. Where that way does
        not work, the socket keeps its name, and the descriptor is -1.
    """
    entry = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    way = way_to(entry)
    try:
        if os.stat(_PROCESSES / str(os.getpid())).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "other processes may not go through our descriptors", str(way))
        with socket.socket(socket.AF_UNIX, listener.type) as visitor:
            visitor.connect(str(way))
            listener.accept()[0].close()
    except OSError:
        os.close(entry)
        return path, -1
    path.unlink(missing_ok=True)
    return way, entry


def _sealed(name: str) -> int:
    try:
        descriptor = make_memfd(name, _CLOEXEC | _ALLOW_SEALING | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = make_memfd(name, _CLOEXEC | _ALLOW_SEALING)  # Linux before 6.3
    try:
        os.fchmod(descriptor, 0o600)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unlinked(folder: Path) -> int:
    descriptor, name = tempfile.mkstemp(prefix="memory-", dir=folder)
    with suppress(FileNotFoundError):
        os.unlink(name)
    os.set_inheritable(descriptor, False)
    return descriptor
