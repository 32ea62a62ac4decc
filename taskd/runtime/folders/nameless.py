"""Memory and sockets of an agent that have no name in any folder: `/proc/AGENT/fd/NUMBER` leads to them.

Rules:

1. The agent holds a descriptor, and the kernel lets only this user go through it. No cleaner of folders reaches it. It
   ends with the agent, however that ends.
2. Memory is sealed against shrinking. So a process that has mapped it never meets the end of a cut file, which is a
   SIGBUS. Nobody can add another seal.
3. Where the kernel refuses such memory, a file replaces it. The file's name is removed at once.
4. The kernel closes that way (`is_open_to_others`) to an agent whose user or capabilities have changed. It also closes
   it to ranks that dropped capabilities or have a user namespace of their own, and without /proc. Files with names
   replace it.
5. A number may belong to another file when a rank opens it, because the agent has closed it or has ended. Under /proc,
   a rank accepts only a file without a name that was made here. A path outside /proc is a file of this user with a
   name. It is made if it is not there, and never reached through a link.
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
from taskd.runtime.system.processes import is_dumpable

_PROCESSES: Final = Path("/proc")
_CLOEXEC, _ALLOW_SEALING, _NOEXEC_SEAL = 1, 2, 8
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK = 1033, 1, 2
_PREFIX: Final = "taskd-"
"""Prefix of the names of all memory: those that /proc shows, and those of files."""
_MAGIC: Final = b"taskdrec"
_HEAD_BYTES: Final = 24
"""Size of a record's head: the magic number, its length, and its check sum."""


class KeptMemory:
    """Memory that others reach by `path` while this process holds it.

    Raises:
        OSError: there is none: too many descriptors are open, or nothing can be written to `folder` either.
    """

    def __init__(self, name: str, folder: Path, *, named: bool = False) -> None:
        """Make the memory. `name` is for people who read /proc.

        With `named` it is a file in `folder`. Otherwise a file is made there only if the kernel has no such memory.
        """
        self._descriptor = -1
        if named:
            descriptor, path = _file(name, folder)
            os.close(descriptor)
            self.path = Path(path)
            return
        try:
            self._descriptor = _sealed(name)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self._descriptor, path = _file(name, folder)
            with suppress(FileNotFoundError):
                os.unlink(path)
        self.path = way_to(self._descriptor)

    def close(self, *, holds_number: bool = False) -> None:
        """Release the memory, which goes when no process has it mapped any more.

        With `holds_number` no other file of this process takes its number, because a rank may still open `path`.
        """
        if self._descriptor < 0:
            with suppress(OSError):  # another program has swept the folder
                self.path.unlink()
        elif holds_number:
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), self._descriptor, inheritable=False)
        else:
            os.close(self._descriptor)


def way_to(descriptor: int) -> Path:
    """Return the path by which other processes of this user reach an open file of this one."""
    return _PROCESSES / str(os.getpid()) / "fd" / str(descriptor)


def is_open_to_others() -> bool:
    """Return whether `way_to` works for other processes of this user that have the capabilities of this one.

    A trial by this process itself shows nothing: the kernel always allows that.
    """
    own = _PROCESSES / str(os.getpid())
    try:
        same = os.readlink(_PROCESSES / "self") == own.name  # /proc may be of another PID namespace
        return same and os.stat(own / "fd").st_uid == os.geteuid() and is_dumpable()
    except OSError:
        return False


def has_name(path: Path) -> bool:
    """Return whether this is a file in some folder, and no memory of the agent."""
    return _PROCESSES not in path.parents


def open_kept(path: Path) -> int:
    """Open the agent's memory, or a file with a name, to read and write. Raises `OSError`, also if it is another's."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if has_name(path):
        flags |= os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        _expect(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_record(path: Path, content: bytes) -> None:
    """Replace the record. The old one is erased first, so half of one is never read."""
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
    """Erase the record. Raises `OSError`."""
    descriptor = open_kept(path)
    try:
        os.pwrite(descriptor, bytes(_HEAD_BYTES), 0)
    finally:
        os.close(descriptor)


def unname(listener: socket.socket, path: Path) -> tuple[Path, int]:
    """Remove the name of a Unix socket that listens at `path`.

    Returns:
        The path by which processes of this user connect, and the descriptor to keep open for it. Where that way does
        not work, the socket keeps its name, and the descriptor is -1.
    """
    if not is_open_to_others():
        return path, -1
    entry = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    way = way_to(entry)
    try:
        with socket.socket(socket.AF_UNIX, listener.type) as visitor:
            visitor.connect(str(way))
            listener.accept()[0].close()
    except OSError:
        os.close(entry)
        return path, -1
    path.unlink(missing_ok=True)
    return way, entry


def _expect(descriptor: int, path: Path) -> None:
    """Raise `OSError` unless this is a file of this user and, under /proc, memory that was made here."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        what = f"found mode {found.st_mode:o} of user {found.st_uid}, expected a regular file of user {os.geteuid()}"
        raise OSError(errno.EPERM, what, str(path))
    if has_name(path):
        return
    shown = os.readlink(f"/proc/self/fd/{descriptor}")
    if found.st_nlink or not Path(shown).name.removeprefix("memfd:").startswith(_PREFIX):
        raise OSError(errno.ESTALE, f"found {shown}, expected memory of the agent, which holds it no more", str(path))


def _sealed(name: str) -> int:
    try:
        descriptor = make_memfd(f"{_PREFIX}{name}", _CLOEXEC | _ALLOW_SEALING | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = make_memfd(f"{_PREFIX}{name}", _CLOEXEC | _ALLOW_SEALING)  # Linux before 6.3
    try:
        os.fchmod(descriptor, 0o600)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _file(name: str, folder: Path) -> tuple[int, str]:
    descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{name}-", dir=folder)
    os.set_inheritable(descriptor, False)
    return descriptor, path
