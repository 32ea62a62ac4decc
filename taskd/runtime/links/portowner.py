"""The process that listens on a port of this machine: for the one error that every user meets."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_PROC: Final = Path("/proc")


def listener_of(port: int) -> str:
    """Return the listener of a TCP port, as in "process 12 (python manager.py)", as far as /proc shows it."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        if inodes & set(_descriptors(pid)):
            return f"process {pid} ({_command(pid)})"
    return "a process that this user cannot see"


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(_PROC / str(pid) / "fd")
    except OSError:  # another user's process, or gone
        return
    for name in names:
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(_PROC / str(pid) / "fd" / name)


def _command(pid: int) -> str:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return "gone meanwhile"
    return ascii(raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))[1:-1][:80]
